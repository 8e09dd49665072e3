#include "restart_markers.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "pixels/decode.h"
// jerror.h needs jpeglib.h.
#include <jerror.h>

namespace custom_op {
namespace {

// A growing buffer. It frees its memory even if compression fails.
struct Output {
  jpeg_destination_mgr pub{};
  uint8_t* data = nullptr;
  size_t capacity = 0;

  ~Output() { std::free(data); }
};

Output* output_of(j_compress_ptr cinfo) { return reinterpret_cast<Output*>(cinfo->dest); }

void grow(j_compress_ptr cinfo, size_t used) {
  Output* out = output_of(cinfo);
  const size_t capacity = out->capacity * 2 + 65536;
  auto* data = static_cast<uint8_t*>(std::realloc(out->data, capacity));
  if (data == nullptr) ERREXIT1(cinfo, JERR_OUT_OF_MEMORY, 0);
  out->data = data;
  out->capacity = capacity;
  out->pub.next_output_byte = data + used;
  out->pub.free_in_buffer = capacity - used;
}

void init_destination_cb(j_compress_ptr cinfo) { grow(cinfo, 0); }
boolean empty_output_buffer_cb(j_compress_ptr cinfo) {
  grow(cinfo, output_of(cinfo)->capacity);
  return TRUE;
}
void term_destination_cb(j_compress_ptr) {}

// libjpeg writes new JFIF and Adobe markers.
bool is_written_by_libjpeg(const jpeg_marker_struct& marker, const jpeg_compress_struct& target) {
  const std::string_view data(reinterpret_cast<const char*>(marker.data), marker.data_length);
  return (target.write_JFIF_header && marker.marker == JPEG_APP0 &&
          data.substr(0, 5) == std::string_view("JFIF\0", 5)) ||
         (target.write_Adobe_marker && marker.marker == JPEG_APP0 + 14 &&
          data.substr(0, 5) == "Adobe");
}

// Hashes rows of pixels.
class RowHasher final : public RowSink {
 public:
  explicit RowHasher(int64_t width) : row_(static_cast<size_t>(width) * 3) {}
  void begin() override { hashes_.clear(); }
  uint8_t* next() override { return row_.data(); }
  void written() override {
    hashes_.push_back(
        std::hash<std::string_view>()({reinterpret_cast<const char*>(row_.data()), row_.size()}));
  }
  bool operator==(const RowHasher& other) const { return hashes_ == other.hashes_; }

 private:
  std::vector<uint8_t> row_;
  std::vector<size_t> hashes_;
};

// Decodes the coefficients of a file once, for its pixels and to write them with any intervals.
class Rewriter {
 public:
  // Throws JpegError.
  Rewriter(Bytes jpeg, int64_t max_pixels) {
    source_.read_header(jpeg, max_pixels);
    rows_.request(Color::kRgb);
    const jpeg_decompress_struct& source = source_.cinfo();
    const int64_t image_height = source.image_height, image_width = source.image_width;
    pixels_ = RowHasher(image_width);
    if (!decode_phase() || !rows_.read({0, image_height, 0, image_width}, pixels_) ||
        !coefficients_phase()) {
      source_.fail();
    }
    const bool is_gray = source.num_components == 1;
    const int64_t width = 8 * (is_gray ? 1 : source.max_h_samp_factor);
    const int64_t height = 8 * (is_gray ? 1 : source.max_v_samp_factor);
    per_row_ = divide_up(image_width, width);
    mcus_ = per_row_ * divide_up(image_height, height);
  }

  // What libjpeg makes of the file.
  const RowHasher& pixels() const { return pixels_; }
  bool is_progressive() { return source_.cinfo().progressive_mode != 0; }
  int64_t mcus_per_row() const { return per_row_; }
  int64_t markers(int64_t interval) const { return divide_up(mcus_, interval) - 1; }

  // Throws NotIndexable.
  std::vector<uint8_t> write(int64_t interval) {
    Target target;
    if (!write_phase(interval, target)) throw NotIndexable(errors_.message);
    const Output& out = target.out;
    return {out.data, out.data + out.capacity - out.pub.free_in_buffer};
  }

 private:
  struct Target {
    // Does nothing if the libjpeg compressor was never created.
    ~Target() { jpeg_destroy_compress(&cinfo); }

    Output out;
    jpeg_compress_struct cinfo{};
  };

  // libjpeg keeps all coefficients of a "buffered image".
  bool decode_phase() noexcept {
    if (setjmp(source_.errors().jump)) return false;
    jpeg_decompress_struct& source = source_.cinfo();
    source.buffered_image = TRUE;
    jpeg_start_decompress(&source);
    while (!jpeg_input_complete(&source)) {
      source.progress->progress_monitor(reinterpret_cast<j_common_ptr>(&source));
      jpeg_consume_input(&source);
    }
    jpeg_start_output(&source, source.input_scan_number);
    return true;
  }

  bool coefficients_phase() noexcept {
    if (setjmp(source_.errors().jump)) return false;
    jpeg_finish_output(&source_.cinfo());
    coefficients_ = jpeg_read_coefficients(&source_.cinfo());
    return true;
  }

  // Writing also reads coefficients from the source, so errors of both must jump here.
  bool write_phase(int64_t interval, Target& target) noexcept {
    jpeg_compress_struct& cinfo = target.cinfo;
    cinfo.err = install(errors_);
    if (setjmp(errors_.jump)) return false;
    jpeg_create_compress(&cinfo);
    source_.cinfo().err = &errors_.pub;
    target.out.pub.init_destination = init_destination_cb;
    target.out.pub.empty_output_buffer = empty_output_buffer_cb;
    target.out.pub.term_destination = term_destination_cb;
    cinfo.dest = &target.out.pub;
    jpeg_copy_critical_parameters(&source_.cinfo(), &cinfo);
    cinfo.optimize_coding = TRUE;
    cinfo.restart_interval = static_cast<unsigned>(interval);
    jpeg_write_coefficients(&cinfo, coefficients_);
    for (auto* marker = source_.cinfo().marker_list; marker != nullptr; marker = marker->next) {
      if (is_written_by_libjpeg(*marker, cinfo)) continue;
      jpeg_write_marker(&cinfo, marker->marker, marker->data, marker->data_length);
    }
    jpeg_finish_compress(&cinfo);
    return true;
  }

  Decompressor source_{true};
  LibjpegRows rows_{source_};
  RowHasher pixels_{0};
  ErrorContext errors_;
  jvirt_barray_ptr* coefficients_ = nullptr;
  int64_t per_row_ = 0, mcus_ = 0;
};

// The longest interval of at most `wanted` MCUs that divides a row, or a row if that is only 1.
int64_t interval_for(int64_t per_row, int64_t wanted) {
  if (wanted == 1) return 1;
  for (int64_t k = std::min(wanted, per_row); k > 1; --k) {
    if (per_row % k == 0) return k;
  }
  return per_row;
}

// Uses a longer interval, at most a row, if the file would be larger than `largest`. Every marker
// takes about the same number of bytes, so two files tell which interval fits.
std::vector<uint8_t> rewrite_within(Rewriter& rewriter, int64_t wanted, double largest) {
  const auto excess = [&](const std::vector<uint8_t>& file) {
    return static_cast<double>(file.size()) - largest;
  };
  const int64_t per_row = rewriter.mcus_per_row();
  const int64_t shortest = interval_for(per_row, wanted);
  std::vector<uint8_t> most, least;
  // A progressive file is mostly too small for any marker.
  if (!rewriter.is_progressive() || shortest == per_row || std::isinf(largest)) {
    most = rewriter.write(shortest);
    if (excess(most) <= 0 || shortest == per_row) return most;
  }
  least = rewriter.write(per_row);
  if (excess(least) > 0) return least;
  if (most.empty()) most = rewriter.write(shortest);
  const auto markers = [&](int64_t interval) {
    return static_cast<double>(rewriter.markers(interval));
  };
  const double per_marker = (excess(most) - excess(least)) / (markers(shortest) - markers(per_row));
  for (int64_t k = shortest; k < per_row; ++k) {
    if (per_row % k != 0 || excess(least) + (markers(k) - markers(per_row)) * per_marker > 0) {
      continue;
    }
    std::vector<uint8_t> marked = k == shortest ? most : rewriter.write(k);
    if (excess(marked) <= 0) return marked;
  }
  return least;
}

RowHasher decode(const std::vector<uint8_t>& jpeg, int64_t max_pixels) {
  RegionDecoder decoder;
  decoder.open({jpeg.data(), jpeg.size()}, max_pixels);
  RowHasher hasher(decoder.width());
  decoder.decode({0, 0, decoder.height(), decoder.width()}, {}, hasher);
  return hasher;
}

}  // namespace

std::vector<uint8_t> with_restart_markers(Bytes jpeg, int64_t interval, double max_growth,
                                          int64_t max_pixels) {
  if (interval < 1) {
    throw JpegError("interval must be at least 1 MCU; got " + std::to_string(interval));
  }
  try {
    const auto rewriter = std::make_unique<Rewriter>(jpeg, max_pixels);
    const double largest = static_cast<double>(jpeg.size) * (1 + max_growth);
    std::vector<uint8_t> marked = rewrite_within(*rewriter, interval, largest);
    if (rewriter->pixels() == decode(marked, max_pixels)) return marked;
  } catch (const JpegError& error) {
    throw NotIndexable(error.what());
  }
  throw NotIndexable("rewriting it with restart markers would change its pixels");
}

}  // namespace custom_op
