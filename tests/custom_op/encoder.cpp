// Writes JPEGs that Pillow cannot write: any sampling factors, arithmetic coding, separate scans,
// CMYK.
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
// jpeglib.h needs size_t and FILE.
#include <jpeglib.h>

struct Settings {
  int height, width, components, quality;
  int horizontal[4], vertical[4];
  int restart_interval, progressive, arithmetic, optimise, separate_scans;
  int adobe;        // CMYK only: 1 stores YCCK
  int wide_tables;  // low qualities have 16-bit quantization tables
};

namespace {

void separate(jpeg_compress_struct& cinfo, jpeg_scan_info* scans) {
  for (int i = 0; i < cinfo.num_components; ++i) scans[i] = {1, {i, 0, 0, 0}, 0, 63, 0, 0};
  cinfo.scan_info = scans;
  cinfo.num_scans = cinfo.num_components;
}

void set_up(jpeg_compress_struct& cinfo, const Settings& settings, jpeg_scan_info* scans) {
  cinfo.image_height = static_cast<JDIMENSION>(settings.height);
  cinfo.image_width = static_cast<JDIMENSION>(settings.width);
  cinfo.input_components = settings.components;
  cinfo.in_color_space = settings.components == 1   ? JCS_GRAYSCALE
                         : settings.components == 3 ? JCS_RGB
                                                    : JCS_CMYK;
  jpeg_set_defaults(&cinfo);
  if (settings.components == 4) jpeg_set_colorspace(&cinfo, settings.adobe ? JCS_YCCK : JCS_CMYK);
  jpeg_set_quality(&cinfo, settings.quality, !settings.wide_tables);
  for (int i = 0; i < settings.components; ++i) {
    cinfo.comp_info[i].h_samp_factor = settings.horizontal[i];
    cinfo.comp_info[i].v_samp_factor = settings.vertical[i];
  }
  cinfo.restart_interval = static_cast<unsigned>(settings.restart_interval);
  cinfo.optimize_coding = settings.optimise;
  cinfo.arith_code = settings.arithmetic;
  if (settings.progressive) jpeg_simple_progression(&cinfo);
  if (settings.separate_scans) separate(cinfo, scans);
}

}  // namespace

// Returns malloc'd bytes and their count, or null and 0 if libjpeg refuses the settings.
extern "C" unsigned char* encode(const Settings* settings, const unsigned char* pixels,
                                 unsigned long* size) {
  jpeg_error_mgr errors;
  jpeg_compress_struct cinfo;
  static jmp_buf jump;
  unsigned char* out = nullptr;
  *size = 0;
  cinfo.err = jpeg_std_error(&errors);
  errors.error_exit = [](j_common_ptr) { longjmp(jump, 1); };
  jpeg_create_compress(&cinfo);
  if (setjmp(jump)) {
    jpeg_destroy_compress(&cinfo);
    return nullptr;
  }
  jpeg_mem_dest(&cinfo, &out, size);
  jpeg_scan_info scans[4];
  set_up(cinfo, *settings, scans);
  jpeg_start_compress(&cinfo, TRUE);
  for (int y = 0; y < settings->height; ++y) {
    JSAMPROW row = const_cast<JSAMPROW>(pixels) +
                   static_cast<size_t>(y) * settings->width * settings->components;
    jpeg_write_scanlines(&cinfo, &row, 1);
  }
  jpeg_finish_compress(&cinfo);
  jpeg_destroy_compress(&cinfo);
  return out;
}

extern "C" void release(unsigned char* data) { std::free(data); }
