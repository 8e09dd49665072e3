// For comparison: the published way to decode a crop, jpeg_crop_scanline and jpeg_skip_scanlines.
// It does not read outside the crop, so its first and last columns are not exact.
#include <cstddef>
#include <cstdio>
// jpeglib.h needs size_t and FILE.
#include <jpeglib.h>

#include <vector>

extern "C" void crop_skip(const unsigned char* data, unsigned long size, unsigned top,
                          unsigned left, unsigned height, unsigned width, unsigned char* out) {
  jpeg_decompress_struct cinfo;
  jpeg_error_mgr errors;
  cinfo.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&cinfo);
  jpeg_mem_src(&cinfo, const_cast<unsigned char*>(data), size);
  jpeg_read_header(&cinfo, TRUE);
  jpeg_start_decompress(&cinfo);
  JDIMENSION offset = left, columns = width;
  jpeg_crop_scanline(&cinfo, &offset, &columns);
  if (top != 0) jpeg_skip_scanlines(&cinfo, top);
  std::vector<unsigned char> row(cinfo.output_width * 3);
  JSAMPROW pointer = row.data();
  for (unsigned y = 0; y < height; ++y, out += width * 3) {
    jpeg_read_scanlines(&cinfo, &pointer, 1);
    const unsigned char* first = row.data() + (left - offset) * 3;
    for (unsigned i = 0; i < width * 3; ++i) out[i] = first[i];
  }
  jpeg_destroy_decompress(&cinfo);
}
