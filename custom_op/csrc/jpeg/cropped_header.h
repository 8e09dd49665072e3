// The grid of MCUs that a crop needs, and the header of a JPEG that holds just those.
#pragma once

#include <vector>

#include "jpeg/header.h"

namespace custom_op {

// Note [One pixel more]
// Chroma upsampling looks one pixel past a crop's edge, and at an image's edge it repeats the last
// one. So the cover of a crop is the cover of the crop grown by a pixel on each side: then no
// pixel inside the crop can tell that the image was cut. Images of at most two chroma columns are
// upsampled in another way, so the cover of a crop of a wider image has more than those.
struct McuCover {
  int64_t first_row, first_col, rows, cols;  // in MCUs
  int64_t height, width;                     // pixels of the image that holds just the cover
  int64_t top, left;                         // of the crop in that image
};

// `margin` is the number of further pixels the crop's edge depends on. The box lies inside.
McuCover cover_of(const Header& header, const Box& box, int64_t margin);

// Replaces `out` by the markers from SOI up to the first entropy-coded byte, for an image of this
// size: tables and frame as they are, no metadata, restarts every `restart_interval` MCUs.
void write_cropped_header(Bytes jpeg, const Header& header, const McuCover& cover,
                          int64_t restart_interval, std::vector<uint8_t>& out);

}  // namespace custom_op
