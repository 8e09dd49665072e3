#include "pixels/decode.h"

#include <algorithm>
#include <string>

namespace custom_op {
namespace {

// Note [Reading MCUs for libjpeg]
// libjpeg calls its entropy decoder through this function pointer, one MCU at a time. We give
// libjpeg the header of an image that holds only the MCUs of the crop, and answer the calls with
// those MCUs of the original data, starting at its restart markers. libjpeg still does the inverse
// DCT, upsampling and color conversion, so the pixels are bit-identical, and MCUs outside the crop
// cost at most their entropy decoding. The struct is private to libjpeg, but its first members are
// the same from IJG version 6b to libjpeg-turbo 3.
struct EntropyDecoder {
  void (*start_pass)(j_decompress_ptr);
  boolean (*decode_mcu)(j_decompress_ptr, JBLOCKROW*);
};

std::string describe(const Box& box, int64_t height, int64_t width) {
  return "crop box (top=" + std::to_string(box.top) + ", left=" + std::to_string(box.left) +
         ", height=" + std::to_string(box.height) + ", width=" + std::to_string(box.width) +
         ") is not inside the image of height=" + std::to_string(height) +
         ", width=" + std::to_string(width);
}

bool inside(const Box& box, int64_t height, int64_t width) {
  return box.height >= 1 && box.width >= 1 && box.top >= 0 && box.left >= 0 &&
         box.height <= height && box.width <= width && box.top <= height - box.height &&
         box.left <= width - box.width;
}

// If the scans of a progressive file leave coefficients incomplete, libjpeg estimates them from the
// neighboring blocks. At the edge of a cropped or skipped region that estimate differs.
bool is_smoothed(const jpeg_decompress_struct& cinfo) {
  if (!cinfo.progressive_mode || cinfo.coef_bits == nullptr) return false;
  for (int i = 0; i < cinfo.num_components; ++i) {
    const int* missing_bits = cinfo.coef_bits[i];
    if (std::any_of(missing_bits, missing_bits + DCTSIZE2, [](int bits) { return bits != 0; })) {
      return true;
    }
  }
  return false;
}

}  // namespace

void RegionDecoder::open(Bytes jpeg, int64_t max_pixels, Bytes side_index) {
  jpeg_ = jpeg;
  side_index_ = side_index;
  max_pixels_ = max_pixels;
  record_share_ = 0;
  readable_.reset();
  parsed_ = parse_header(jpeg, header_);
  if (parsed_ && header_.baseline && header_.height * header_.width <= max_pixels) {
    height_ = header_.height;
    width_ = header_.width;
    return;
  }
  libjpeg_.read_header(jpeg, max_pixels);
  height_ = libjpeg_.cinfo().image_height;
  width_ = libjpeg_.cinfo().image_width;
}

void RegionDecoder::check(const Box& box, bool transposed) const {
  const int64_t height = transposed ? width_ : height_, width = transposed ? height_ : width_;
  if (!inside(box, height, width)) throw JpegError(describe(box, height, width));
}

void RegionDecoder::decode(const Box& box, RowSink& sink, bool only_libjpeg) {
  check(box);
  if (!only_libjpeg && decode_baseline(box, sink)) return;
  // If our reader fails, libjpeg decides whether the data is damaged.
  decode_in_order(box, sink);
  jpeg_abort_decompress(&libjpeg_.cinfo());
}

std::vector<uint8_t> RegionDecoder::finish_side_index() {
  if (readable_ ? *readable_ : start_reader()) return reader_.finish_side_index();
  return {};
}

// Before the first MCU of a crop.
bool RegionDecoder::start_reader() {
  if (!readable_) {
    readable_ = parsed_ && header_.baseline && parse_tables(jpeg_, header_, tables_) &&
                reader_.start(jpeg_, header_, tables_, side_index_);
    if (*readable_ && record_share_ > 0) {
      reader_.record_side_index(
          static_cast<size_t>(record_share_ * static_cast<double>(jpeg_.size)));
    }
  } else if (*readable_) {
    reader_.rewind();
  }
  return *readable_;
}

bool RegionDecoder::decode_baseline(const Box& box, RowSink& sink) {
  if (!start_reader()) return false;
#ifdef __AVX2__
  // On other processors, libjpeg's vector code is faster than portable C++.
  if (BaselineDecoder::supports(jpeg_, header_)) {
    return baseline_.decode(reader_, header_, tables_, box, sink);
  }
#endif
  const bool done = decode_cover(box, sink);
  jpeg_abort_decompress(&libjpeg_.cinfo());
  return done;
}

boolean RegionDecoder::decode_mcu_cb(j_decompress_ptr cinfo, JBLOCKROW* blocks) {
  auto& feed = *static_cast<Feed*>(cinfo->client_data);
  if (feed.ready == 0) {
    const int64_t row = feed.cover.first_row + feed.row;
    if (feed.col == 0 && !feed.reader->seek(row * feed.per_row + feed.cover.first_col))
      return FALSE;
    feed.ready = feed.reader->take(feed.cover.cols - feed.col);
    if (feed.ready == 0) return FALSE;
    feed.next = feed.reader->blocks();
  }
  for (int i = 0; i < cinfo->blocks_in_MCU; ++i, ++feed.next) {
    std::copy_n(feed.next->coefficients.begin(), DCTSIZE2, *blocks[i]);
  }
  --feed.ready;
  if (++feed.col == feed.cover.cols) {
    feed.col = 0;
    ++feed.row;
  }
  return TRUE;
}

bool RegionDecoder::decode_cover(const Box& box, RowSink& sink) {
  const McuCover cover = cover_of(header_, box);
  write_cropped_header(jpeg_, header_, cover, cropped_header_);
  auto& cinfo = libjpeg_.cinfo();
  if (!libjpeg_.restart({cropped_header_.data(), cropped_header_.size()}) || !start_phase()) {
    return false;
  }
  feed_ = {};
  feed_.reader = &reader_;
  feed_.cover = cover;
  feed_.per_row = header_.mcus_per_row;
  cinfo.client_data = &feed_;
  reinterpret_cast<EntropyDecoder*>(cinfo.entropy)->decode_mcu = decode_mcu_cb;
  return rows_.read({cover.top, box.height, cover.left, box.width}, sink);
}

void RegionDecoder::decode_in_order(const Box& box, RowSink& sink) {
  libjpeg_.read_header(jpeg_, max_pixels_);
  LibjpegRows::Part part{box.top, box.height, box.left, box.width};
  if (!start_phase()) libjpeg_.fail();
  if (!is_smoothed(libjpeg_.cinfo()) && !crop_phase(box, part)) libjpeg_.fail();
  if (!rows_.read(part, sink)) libjpeg_.fail();
  // Lost segments can shift all later ones while the marker numbers stay in order. Only the end of
  // the image shows that.
  const bool suspicious = parsed_ && header_.baseline && header_.restart_interval != 0;
  if (suspicious && !rows_.read_to_the_end()) libjpeg_.fail();
}

bool RegionDecoder::start_phase() noexcept {
  if (setjmp(libjpeg_.errors().jump)) return false;
  rows_.request_rgb();
  jpeg_start_decompress(&libjpeg_.cinfo());
  return true;
}

bool RegionDecoder::crop_phase(const Box& box, LibjpegRows::Part& part) noexcept {
  if (setjmp(libjpeg_.errors().jump)) return false;
  auto& cinfo = libjpeg_.cinfo();
  // See Note [One-pixel margin].
  const int64_t narrow = 2 * cinfo.max_h_samp_factor, image_width = cinfo.output_width;
  const int64_t right =
      std::min(std::max(box.left + box.width + 1, box.left + narrow), image_width);
  const int64_t left = std::max<int64_t>(std::min(box.left - 1, right - narrow - 1), 0);
  auto offset = static_cast<JDIMENSION>(left);
  if (right - left < image_width) {
    auto width = static_cast<JDIMENSION>(right - left);
    jpeg_crop_scanline(&cinfo, &offset, &width);
  }
  part.first_column = box.left - offset;
  part.skip = 0;
  const auto skip = static_cast<JDIMENSION>(box.top);
  if (skip != 0 && jpeg_skip_scanlines(&cinfo, skip) != skip) return false;
  return true;
}

}  // namespace custom_op
