#include "jpeg/decompressor.h"

// jerror.h needs jpeglib.h.
#include <jerror.h>

#include <cstring>

namespace custom_op {
namespace {

// Encoders write at most a few dozen scans. In a hostile file, every scan costs a whole decode.
constexpr int kMaxScans = 100;

void error_exit_cb(j_common_ptr cinfo) {
  auto* errors = reinterpret_cast<ErrorContext*>(cinfo->err);
  (*errors->pub.format_message)(cinfo, errors->message);
  longjmp(errors->jump, 1);
}

// Whether a warning is about the header and changes no pixel.
bool is_harmless(j_common_ptr cinfo) {
  switch (cinfo->err->msg_code) {
    case JWRN_NOT_SEQUENTIAL:
    case JWRN_ADOBE_XFORM:
    case JWRN_JFIF_MAJOR:
      return true;
    case JWRN_EXTRANEOUS_DATA:
      // Before the first scan. Later, the bytes are entropy-coded data that was not decoded.
      return reinterpret_cast<j_decompress_ptr>(cinfo)->input_scan_number == 0;
    default:
      return false;
  }
}

void emit_message_cb(j_common_ptr cinfo, int level) {
  if (level < 0 && !is_harmless(cinfo)) error_exit_cb(cinfo);
}

void output_message_cb(j_common_ptr) {}

void init_source_cb(j_decompress_ptr) {}

boolean fill_input_buffer_cb(j_decompress_ptr cinfo) {
  auto* errors = reinterpret_cast<ErrorContext*>(cinfo->err);
  std::strcpy(errors->message, "the JPEG is truncated: the data ends before the image is complete");
  longjmp(errors->jump, 1);
}

void skip_input_data_cb(j_decompress_ptr cinfo, long count) {
  if (count <= 0) return;
  auto* source = cinfo->src;
  if (static_cast<size_t>(count) > source->bytes_in_buffer) (*source->fill_input_buffer)(cinfo);
  source->next_input_byte += count;
  source->bytes_in_buffer -= static_cast<size_t>(count);
}

void term_source_cb(j_decompress_ptr) {}

void progress_cb(j_common_ptr cinfo) {
  auto* decompress = reinterpret_cast<j_decompress_ptr>(cinfo);
  if (decompress->input_scan_number <= kMaxScans) return;
  auto* errors = reinterpret_cast<ErrorContext*>(cinfo->err);
  std::snprintf(errors->message, sizeof errors->message,
                "the JPEG has more than %d scans; refused as hostile", kMaxScans);
  longjmp(errors->jump, 1);
}

// A Huffman-coded block takes at least one bit, so a header with more blocks than the file has bits
// is invalid. This check runs before libjpeg allocates memory for the image.
bool blocks_fit(const jpeg_decompress_struct& cinfo, size_t bytes) {
  if (cinfo.arith_code) return true;
  uint64_t blocks = 0;
  for (int i = 0; i < cinfo.num_components; ++i) {
    const auto& component = cinfo.comp_info[i];
    blocks += uint64_t{component.width_in_blocks} * component.height_in_blocks;
  }
  return blocks / 8 <= bytes;
}

// All bytes are available from the start; reading past them is an error.
void install_source(j_decompress_ptr cinfo, jpeg_source_mgr& source, Bytes jpeg) {
  source.next_input_byte = jpeg.data;
  source.bytes_in_buffer = jpeg.size;
  source.init_source = init_source_cb;
  source.fill_input_buffer = fill_input_buffer_cb;
  source.skip_input_data = skip_input_data_cb;
  source.resync_to_restart = jpeg_resync_to_restart;
  source.term_source = term_source_cb;
  cinfo->src = &source;
}

}  // namespace

Decompressor::Decompressor(bool keep_markers) : keep_markers_(keep_markers) {
  jpeg_std_error(&errors_.pub);
  errors_.pub.error_exit = error_exit_cb;
  errors_.pub.emit_message = emit_message_cb;
  errors_.pub.output_message = output_message_cb;
  progress_.progress_monitor = progress_cb;
}

// Does nothing if the libjpeg decompressor was never created.
Decompressor::~Decompressor() { jpeg_destroy_decompress(&cinfo_); }

bool Decompressor::restart(Bytes jpeg) noexcept {
  std::strcpy(errors_.message, "the JPEG is damaged: rows are missing");
  if (setjmp(errors_.jump)) return false;
  // jpeg_abort_decompress keeps the tables: a file without tables would be decoded with those of
  // the previous file.
  jpeg_destroy_decompress(&cinfo_);
  cinfo_.err = &errors_.pub;
  jpeg_create_decompress(&cinfo_);
  cinfo_.progress = &progress_;
  if (keep_markers_) {
    jpeg_save_markers(&cinfo_, JPEG_COM, 0xFFFF);
    for (int i = 0; i < 16; ++i) jpeg_save_markers(&cinfo_, JPEG_APP0 + i, 0xFFFF);
  }
  install_source(&cinfo_, source_, jpeg);
  jpeg_read_header(&cinfo_, TRUE);
  return true;
}

void Decompressor::read_header(Bytes jpeg, int64_t max_pixels) {
  if (!starts_like_jpeg(jpeg)) {
    throw JpegError("not a JPEG: the data does not start with FF D8 FF");
  }
  if (!restart(jpeg)) fail();
  const int64_t pixels = int64_t{cinfo_.image_width} * cinfo_.image_height;
  if (pixels > max_pixels) {
    throw JpegError("the image is " + std::to_string(cinfo_.image_height) + "x" +
                    std::to_string(cinfo_.image_width) + ", more than " +
                    std::to_string(max_pixels) + " pixels: shrink it");
  }
  if (cinfo_.data_precision != 8) {
    throw JpegError("not supported: " + std::to_string(cinfo_.data_precision) +
                    "-bit JPEG; convert it to 8 bits");
  }
  if (!blocks_fit(cinfo_, jpeg.size)) {
    throw JpegError("the JPEG is truncated: " + std::to_string(jpeg.size) +
                    " bytes cannot hold the image that its header describes");
  }
}

}  // namespace custom_op
