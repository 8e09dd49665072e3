#include "pixels/session.h"

// jerror.h needs jpeglib.h.
#include <jerror.h>

#include <cstring>

namespace custom_op {
namespace {

// No encoder writes more than a few dozen scans; a hostile file costs the whole image per scan.
constexpr int kMaxScans = 100;

void error_exit_cb(j_common_ptr cinfo) {
  auto* errors = reinterpret_cast<ErrorContext*>(cinfo->err);
  (*errors->pub.format_message)(cinfo, errors->message);
  longjmp(errors->jump, 1);
}

void emit_message_cb(j_common_ptr cinfo, int level) {
  if (level >= 0) return;
  // A newer JFIF revision is no damage.
  if (cinfo->err->msg_code == JWRN_JFIF_MAJOR) return;
  error_exit_cb(cinfo);
}

void output_message_cb(j_common_ptr) {}

void init_source_cb(j_decompress_ptr) {}

boolean fill_input_buffer_cb(j_decompress_ptr cinfo) {
  auto* errors = reinterpret_cast<ErrorContext*>(cinfo->err);
  std::strcpy(errors->message, "the JPEG is truncated: its data ends before the image does");
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
  std::snprintf(errors->message, sizeof errors->message, "more than %d scans: refused as hostile",
                kMaxScans);
  longjmp(errors->jump, 1);
}

// Every Huffman-coded block costs at least one bit, so a header that promises more blocks than the
// file has bits lies; checked before anything is allocated by the header's word.
bool blocks_fit(const jpeg_decompress_struct& cinfo, size_t bytes) {
  if (cinfo.arith_code) return true;
  uint64_t blocks = 0;
  for (int i = 0; i < cinfo.num_components; ++i) {
    const auto& component = cinfo.comp_info[i];
    blocks += uint64_t{component.width_in_blocks} * component.height_in_blocks;
  }
  return blocks / 8 <= bytes;
}

}  // namespace

jpeg_error_mgr* install(ErrorContext& errors) {
  jpeg_std_error(&errors.pub);
  errors.pub.error_exit = error_exit_cb;
  errors.pub.emit_message = emit_message_cb;
  errors.pub.output_message = output_message_cb;
  errors.message[0] = '\0';
  return &errors.pub;
}

void install_source(j_decompress_ptr cinfo, jpeg_source_mgr& source, Bytes jpeg) {
  source = {jpeg.data,          jpeg.size,
            init_source_cb,     fill_input_buffer_cb,
            skip_input_data_cb, jpeg_resync_to_restart,
            term_source_cb};
  cinfo->src = &source;
}

Session::Session(bool keep_markers) : keep_markers_(keep_markers) {
  install(errors_);
  progress_.progress_monitor = progress_cb;
}

// Does nothing to a decompressor that was never created.
Session::~Session() { jpeg_destroy_decompress(&cinfo_); }

bool Session::restart(Bytes jpeg) noexcept {
  std::strcpy(errors_.message, "the JPEG is damaged: it has no more rows");
  if (setjmp(errors_.jump)) return false;
  // A decompressor that only aborts keeps its tables: a file without its own would be decoded with
  // those of the file before it.
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

void Session::read_header(Bytes jpeg, int64_t max_pixels) {
  if (jpeg.size < 4 || jpeg.data[0] != 0xFF || jpeg.data[1] != 0xD8) {
    throw JpegError("not a JPEG: the data does not start with FF D8");
  }
  if (!restart(jpeg)) fail();
  const int64_t pixels = int64_t{cinfo_.image_width} * cinfo_.image_height;
  if (pixels > max_pixels) {
    throw JpegError("the image is " + std::to_string(cinfo_.image_height) + "x" +
                    std::to_string(cinfo_.image_width) + " pixels, more than max_pixels=" +
                    std::to_string(max_pixels) + "; raise max_pixels if the file is trusted");
  }
  if (cinfo_.data_precision != 8) {
    throw JpegError("not supported: " + std::to_string(cinfo_.data_precision) +
                    "-bit JPEG; convert it to 8 bits");
  }
  if (!blocks_fit(cinfo_, jpeg.size)) {
    throw JpegError("the JPEG is truncated: " + std::to_string(jpeg.size) +
                    " bytes cannot hold the image its header promises");
  }
}

}  // namespace custom_op
