#include "to_baseline.h"

#include <cstdlib>
#include <functional>
#include <new>
#include <string_view>

#include "jpeg/header.h"
#include "pixels/decode.h"

namespace custom_op {
namespace {

// A libjpeg compressor that writes to memory, which is freed even if compression fails.
struct Target {
  Target() : file(open_memstream(&data, &size)) {
    if (file == nullptr) throw std::bad_alloc();
  }
  ~Target() {
    jpeg_destroy_compress(&cinfo);  // does nothing if it was never created
    std::fclose(file);
    std::free(data);
  }
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  char* data = nullptr;
  size_t size = 0;
  FILE* file;
  jpeg_compress_struct cinfo{};
};

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

// Decodes all scans. libjpeg keeps the coefficients of a "buffered image".
bool decode_phase(Decompressor& source) noexcept {
  if (setjmp(source.errors().jump)) return false;
  jpeg_decompress_struct& cinfo = source.cinfo();
  cinfo.buffered_image = TRUE;
  jpeg_start_decompress(&cinfo);
  while (!jpeg_input_complete(&cinfo)) {
    cinfo.progress->progress_monitor(reinterpret_cast<j_common_ptr>(&cinfo));
    jpeg_consume_input(&cinfo);
  }
  jpeg_start_output(&cinfo, cinfo.input_scan_number);
  return true;
}

// Writes the coefficients. Errors of both sides jump here.
bool write_phase(Decompressor& source, Target& target) noexcept {
  jpeg_compress_struct& cinfo = target.cinfo;
  cinfo.err = &source.errors().pub;
  if (setjmp(source.errors().jump)) return false;
  jpeg_finish_output(&source.cinfo());
  jpeg_create_compress(&cinfo);
  jpeg_stdio_dest(&cinfo, target.file);
  jpeg_copy_critical_parameters(&source.cinfo(), &cinfo);
  cinfo.optimize_coding = TRUE;
  jpeg_write_coefficients(&cinfo, jpeg_read_coefficients(&source.cinfo()));
  for (auto* marker = source.cinfo().marker_list; marker != nullptr; marker = marker->next) {
    if (is_written_by_libjpeg(*marker, cinfo)) continue;
    jpeg_write_marker(&cinfo, marker->marker, marker->data, marker->data_length);
  }
  jpeg_finish_compress(&cinfo);
  return true;
}

}  // namespace

std::vector<uint8_t> to_baseline(Bytes jpeg, int64_t max_pixels) {
  Header header;
  if (parse_header(jpeg, header) && header.baseline) return {jpeg.data, jpeg.data + jpeg.size};

  Decompressor source(/*keep_markers=*/true);
  source.read_header(jpeg, max_pixels);
  LibjpegRows rows(source);
  rows.request_rgb();
  const int64_t height = source.cinfo().image_height, width = source.cinfo().image_width;
  RowHasher expected(width), actual(width);
  Target target;
  if (!decode_phase(source) || !rows.read({0, height, 0, width}, expected) ||
      !write_phase(source, target)) {
    source.fail();
  }

  RegionDecoder decoder;
  const auto* data = reinterpret_cast<const uint8_t*>(target.data);
  decoder.open({data, target.size}, max_pixels);
  decoder.decode({0, 0, height, width}, actual);
  if (!(actual == expected)) {
    throw JpegError("as a baseline file, the image would have other pixels");
  }
  return {data, data + target.size};
}

}  // namespace custom_op
