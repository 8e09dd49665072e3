// The MCUs that a crop needs, and the header of a JPEG that holds only those MCUs.
#pragma once

#include <vector>

#include "jpeg/header.h"

namespace custom_op {

// Note [One-pixel margin]
// Chroma upsampling reads one pixel past the edge of a crop; at the edge of an image it repeats the
// last pixel instead. So the cover includes one more pixel on each side of the crop. Without it,
// the first and last column of the crop would differ from a decode of the whole image. libjpeg
// upsamples images of at most two chroma columns differently, so the cover in a wider image has
// more columns.
struct McuCover {
  int64_t first_row, first_col, rows, cols;  // in MCUs
  int64_t height, width;                     // size in pixels of the image that holds the cover
  int64_t top, left;                         // of the crop in that image
};

// The box must lie inside the image.
McuCover cover_of(const Header& header, const Box& box);

// Replaces `out` by the header (SOI up to the first entropy-coded byte) of an image that holds the
// cover: the same tables and frame, no metadata, no restart interval.
void write_cropped_header(Bytes jpeg, const Header& header, const McuCover& cover,
                          std::vector<uint8_t>& out);

}  // namespace custom_op
