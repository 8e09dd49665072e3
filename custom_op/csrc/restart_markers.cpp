#include "restart_markers.h"

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

JDIMENSION mcus_per_row(const jpeg_decompress_struct& source) {
  const JDIMENSION mcu_width =
      8 * (source.num_components == 1 ? 1 : static_cast<JDIMENSION>(source.max_h_samp_factor));
  return (source.image_width + mcu_width - 1) / mcu_width;
}

JDIMENSION interval_for(const jpeg_decompress_struct& source, int64_t wanted) {
  const JDIMENSION per_row = mcus_per_row(source);
  if (wanted == 1) return 1;
  for (int64_t k = wanted; k > 1; --k) {
    if (k <= per_row && per_row % k == 0) return static_cast<JDIMENSION>(k);
  }
  return per_row;
}

// libjpeg writes new JFIF and Adobe markers.
bool is_written_by_libjpeg(const jpeg_marker_struct& marker, const jpeg_compress_struct& target) {
  const std::string_view data(reinterpret_cast<const char*>(marker.data), marker.data_length);
  return (target.write_JFIF_header && marker.marker == JPEG_APP0 &&
          data.substr(0, 5) == std::string_view("JFIF\0", 5)) ||
         (target.write_Adobe_marker && marker.marker == JPEG_APP0 + 14 &&
          data.substr(0, 5) == "Adobe");
}

class Rewriter {
 public:
  Rewriter() = default;
  // Does nothing if the libjpeg compressor was never created.
  ~Rewriter() { jpeg_destroy_compress(&target_); }
  Rewriter(const Rewriter&) = delete;
  Rewriter& operator=(const Rewriter&) = delete;

  std::vector<uint8_t> rewrite(Bytes jpeg, int64_t interval, int64_t max_pixels) {
    source_.read_header(jpeg, max_pixels);
    if (!read_phase()) source_.fail();
    if (!write_phase(interval)) throw NotIndexable(errors_.message);
    return {out_.data, out_.data + out_.capacity - out_.pub.free_in_buffer};
  }

  // Of the file that was rewritten. There is no longer interval than a row.
  bool is_row_or_longer(int64_t interval) { return interval >= mcus_per_row(source_.cinfo()); }

 private:
  bool read_phase() noexcept {
    if (setjmp(source_.errors().jump)) return false;
    coefficients_ = jpeg_read_coefficients(&source_.cinfo());
    return true;
  }

  // Writing also reads coefficients from the source, so errors of both must jump here.
  bool write_phase(int64_t interval) noexcept {
    target_.err = install(errors_);
    if (setjmp(errors_.jump)) return false;
    jpeg_create_compress(&target_);
    source_.cinfo().err = &errors_.pub;
    out_.pub.init_destination = init_destination_cb;
    out_.pub.empty_output_buffer = empty_output_buffer_cb;
    out_.pub.term_destination = term_destination_cb;
    target_.dest = &out_.pub;
    jpeg_copy_critical_parameters(&source_.cinfo(), &target_);
    target_.optimize_coding = TRUE;
    target_.restart_interval = interval_for(source_.cinfo(), interval);
    jpeg_write_coefficients(&target_, coefficients_);
    for (auto* marker = source_.cinfo().marker_list; marker != nullptr; marker = marker->next) {
      if (is_written_by_libjpeg(*marker, target_)) continue;
      jpeg_write_marker(&target_, marker->marker, marker->data, marker->data_length);
    }
    jpeg_finish_compress(&target_);
    return true;
  }

  Decompressor source_{true};
  ErrorContext errors_;
  jpeg_compress_struct target_{};
  Output out_;
  jvirt_barray_ptr* coefficients_ = nullptr;
};

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

// Doubles the interval until the file is small enough, or has one marker per row.
std::vector<uint8_t> rewrite_within(Bytes jpeg, int64_t interval, double largest,
                                    int64_t max_pixels) {
  while (true) {
    const auto rewriter = std::make_unique<Rewriter>();
    std::vector<uint8_t> marked = rewriter->rewrite(jpeg, interval, max_pixels);
    if (static_cast<double>(marked.size()) <= largest || rewriter->is_row_or_longer(interval)) {
      return marked;
    }
    interval *= 2;
  }
}

RowHasher hash_pixels(RegionDecoder& decoder, Bytes jpeg, int64_t max_pixels, bool only_libjpeg) {
  decoder.open(jpeg, max_pixels);
  RowHasher hasher(decoder.width());
  decoder.decode({0, 0, decoder.height(), decoder.width()}, {Color::kRgb, 1, only_libjpeg}, hasher);
  return hasher;
}

}  // namespace

std::vector<uint8_t> with_restart_markers(Bytes jpeg, int64_t interval, double max_growth,
                                          int64_t max_pixels) {
  if (interval < 1) {
    throw JpegError("interval must be at least 1 MCU; got " + std::to_string(interval));
  }
  try {
    const double largest = static_cast<double>(jpeg.size) * (1 + max_growth);
    const std::vector<uint8_t> indexed = rewrite_within(jpeg, interval, largest, max_pixels);
    RegionDecoder decoder;
    const Bytes result{indexed.data(), indexed.size()};
    if (hash_pixels(decoder, jpeg, max_pixels, true) ==
        hash_pixels(decoder, result, max_pixels, false)) {
      return indexed;
    }
  } catch (const JpegError& error) {
    throw NotIndexable(error.what());
  }
  throw NotIndexable("rewriting it with restart markers would change its pixels");
}

}  // namespace custom_op
