#include "pixels/decode.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "pixels/color.h"

namespace custom_op {
namespace {

// The most rows that libjpeg returns at once: 4 blocks of 8.
constexpr int kRowsAtOnce = 32;

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

// The pixels of a decode at 1/scale that cover the box.
Box scaled_down(const Box& box, int64_t scale) {
  const int64_t top = box.top / scale, left = box.left / scale;
  return {top, left, divide_up(box.top + box.height, scale) - top,
          divide_up(box.left + box.width, scale) - left};
}

int at_once(int64_t rows) { return static_cast<int>(std::min<int64_t>(rows, kRowsAtOnce)); }

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

int RegionDecoder::warnings() {
  libjpeg_.read_header(jpeg_, max_pixels_);
  start_phase({});  // Errors are for decode() to report.
  jpeg_abort_decompress(&libjpeg_.cinfo());
  return libjpeg_.errors().tolerated;
}

void RegionDecoder::check(const Box& box, bool transposed) const {
  const int64_t height = transposed ? width_ : height_, width = transposed ? height_ : width_;
  if (!inside(box, height, width)) throw JpegError(describe(box, height, width));
}

Trimmed RegionDecoder::trim(const Box& box) const {
  check(box);
  if (parsed_) return custom_op::trim(jpeg_, header_, box);
  return {std::vector<uint8_t>(jpeg_.data, jpeg_.data + jpeg_.size), box.top, box.left};
}

void RegionDecoder::decode(const Box& box, const DecodeOptions& options, RowSink& sink) {
  check(box);
  if (!options.only_libjpeg && decode_baseline(box, options, sink)) return;
  // If our reader fails, libjpeg decides whether the data is damaged.
  decode_in_order(box, options, sink);
  jpeg_abort_decompress(&libjpeg_.cinfo());
}

bool RegionDecoder::decode_samples(const Box& box, SampleSink& sink) {
  check(box);
  return start_reader() && BaselineDecoder::supports(jpeg_, header_) &&
         baseline_.decode(reader_, header_, tables_, box, sink);
}

std::vector<uint8_t> RegionDecoder::build_side_index(int64_t interval) {
  side_index_ = {};
  readable_.reset();
  if (!start_reader()) return {};
  return reader_.build_side_index(header_, interval);
}

bool RegionDecoder::start_reader() {
  if (!readable_) {
    readable_ = parsed_ && header_.baseline && parse_tables(jpeg_, header_, tables_) &&
                reader_.start(jpeg_, header_, tables_, side_index_);
  } else if (*readable_) {
    reader_.rewind();
  }
  return *readable_;
}

bool RegionDecoder::decode_baseline(const Box& box, const DecodeOptions& options, RowSink& sink) {
  if (!start_reader()) return false;
  if (options.scale == 1 && BaselineDecoder::supports(jpeg_, header_)) {
    return baseline_.decode(reader_, header_, tables_, box, options.color, sink);
  }
  const bool done = decode_cover(box, options, sink);
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

bool RegionDecoder::decode_cover(const Box& box, const DecodeOptions& options, RowSink& sink) {
  // At 1/s, a decoded pixel covers s pixels of the image in each direction.
  const McuCover cover = cover_of(header_, box, 2 * options.scale - 1);
  write_cropped_header(jpeg_, header_, cover, 0, cropped_header_);
  auto& cinfo = libjpeg_.cinfo();
  if (!libjpeg_.restart({cropped_header_.data(), cropped_header_.size()}) ||
      !start_phase(options)) {
    return false;
  }
  feed_ = {};
  feed_.reader = &reader_;
  feed_.cover = cover;
  feed_.per_row = header_.mcus_per_row;
  cinfo.client_data = &feed_;
  reinterpret_cast<EntropyDecoder*>(cinfo.entropy)->decode_mcu = decode_mcu_cb;
  const Box scaled = scaled_down(box, options.scale);
  return read({cover.top / options.scale, scaled.height, cover.left / options.scale, scaled.width},
              sink);
}

void RegionDecoder::decode_in_order(const Box& box, const DecodeOptions& options, RowSink& sink) {
  libjpeg_.read_header(jpeg_, max_pixels_);
  const Box scaled = scaled_down(box, options.scale);
  Rows rows{scaled.top, scaled.height, scaled.left, scaled.width};
  if (!start_phase(options)) libjpeg_.fail();
  if (!is_smoothed(libjpeg_.cinfo()) && !crop_phase(scaled, rows)) libjpeg_.fail();
  if (!read(rows, sink)) libjpeg_.fail();
  // Lost segments can shift all later ones while the marker numbers stay in order. Only the end of
  // the image shows that.
  const bool suspicious = parsed_ && header_.baseline && header_.restart_interval != 0;
  if (suspicious && !last_row_phase()) libjpeg_.fail();
}

bool RegionDecoder::start_phase(const DecodeOptions& options) noexcept {
  if (setjmp(libjpeg_.errors().jump)) return false;
  auto& cinfo = libjpeg_.cinfo();
  color_ = options.color;
  if (cinfo.num_components == 4) {
    cinfo.out_color_space = JCS_CMYK;
  } else if (options.color == Color::kYcbcr && cinfo.jpeg_color_space == JCS_YCbCr) {
    cinfo.out_color_space = JCS_YCbCr;
  } else {
    cinfo.out_color_space = JCS_RGB;
  }
  cinfo.scale_num = 1;
  cinfo.scale_denom = static_cast<unsigned>(options.scale);
  cinfo.do_fancy_upsampling = TRUE;
  cinfo.dct_method = JDCT_ISLOW;
  jpeg_start_decompress(&cinfo);
  return true;
}

bool RegionDecoder::crop_phase(const Box& box, Rows& rows) noexcept {
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
  rows.first_column = box.left - offset;
  rows.skip = 0;
  const auto skip = static_cast<JDIMENSION>(box.top);
  if (skip != 0 && jpeg_skip_scanlines(&cinfo, skip) != skip) return false;
  return true;
}

int RegionDecoder::read_phase(JSAMPROW* rows, int wanted) noexcept {
  if (setjmp(libjpeg_.errors().jump)) return 0;
  return static_cast<int>(
      jpeg_read_scanlines(&libjpeg_.cinfo(), rows, static_cast<JDIMENSION>(wanted)));
}

bool RegionDecoder::last_row_phase() noexcept {
  if (setjmp(libjpeg_.errors().jump)) return false;
  auto& cinfo = libjpeg_.cinfo();
  const JDIMENSION rest = cinfo.output_height - cinfo.output_scanline;
  if (rest == 0) return true;
  // Skipping all remaining rows would not read their data.
  if (rest > 1) jpeg_skip_scanlines(&cinfo, rest - 1);
  return jpeg_read_scanlines(&cinfo, row_pointers_.data(), 1) == 1;
}

// Note [Scratch rows in cache]
// libjpeg-turbo's AVX2 color conversion writes rows that are 32-byte aligned with streaming stores,
// which bypass the cache: reading the row afterwards waits for memory. So no scratch row is
// aligned.
void RegionDecoder::place_scratch_rows(size_t row_bytes) {
  constexpr size_t kAlignment = 32;
  const size_t stride = (row_bytes + kAlignment - 1) / kAlignment * kAlignment;
  scratch_.resize(stride * kRowsAtOnce + 2 * kAlignment);
  const auto misaligned = reinterpret_cast<uintptr_t>(scratch_.data()) % kAlignment;
  uint8_t* first = scratch_.data() + (kAlignment - misaligned) + kAlignment / 2;
  row_pointers_.resize(kRowsAtOnce);
  for (int i = 0; i < kRowsAtOnce; ++i) row_pointers_[i] = first + stride * i;
}

bool RegionDecoder::read(const Rows& rows, RowSink& sink) {
  const auto& cinfo = libjpeg_.cinfo();
  const size_t stride = static_cast<size_t>(cinfo.output_width) * cinfo.output_components;
  place_scratch_rows(stride);
  for (int64_t left = rows.skip; left > 0;) {
    const int got = read_phase(row_pointers_.data(), at_once(left));
    if (got == 0) return false;
    left -= got;
  }
  const auto first = static_cast<size_t>(rows.first_column) * cinfo.output_components;
  const size_t row_bytes = static_cast<size_t>(rows.width) * 3;
  sink.begin();
  for (int64_t left = rows.count; left > 0;) {
    const int got = read_phase(row_pointers_.data(), at_once(left));
    if (got == 0) return false;
    for (int i = 0; i < got; ++i) {
      std::memcpy(sink.next(), convert(row_pointers_[i] + first, rows.width), row_bytes);
      sink.written();
    }
    left -= got;
  }
  return true;
}

const uint8_t* RegionDecoder::convert(const uint8_t* row, int64_t width) {
  const J_COLOR_SPACE space = libjpeg_.cinfo().out_color_space;
  if (space == JCS_YCbCr || (space == JCS_RGB && color_ == Color::kRgb)) return row;
  converted_.resize(static_cast<size_t>(width) * 3);
  if (space == JCS_CMYK) {
    cmyk_to_rgb(row, width, converted_.data());
    row = converted_.data();
  }
  if (color_ == Color::kYcbcr) rgb_to_ycbcr(row, width, converted_.data());
  return converted_.data();
}

}  // namespace custom_op
