// EXIF orientation: maps upright boxes to stored boxes, and stored pixels to upright pixels.
#pragma once

#include "types.h"

namespace custom_op {

// How a stored image becomes upright: transposed first, then mirrored and flipped.
struct Orientation {
  bool transposed, mirrored, flipped;  // along the diagonal, left to right, top to bottom
};

inline Orientation orientation_of(int exif) {
  return {exif >= 5, exif == 2 || exif == 3 || exif == 6 || exif == 7,
          exif == 3 || exif == 4 || exif == 7 || exif == 8};
}

// `box` is in upright pixels; `height` and `width` are the stored size.
inline Box stored_box(const Orientation& orientation, Box box, int64_t height, int64_t width) {
  const int64_t upright_height = orientation.transposed ? width : height;
  const int64_t upright_width = orientation.transposed ? height : width;
  if (orientation.flipped) box.top = upright_height - box.top - box.height;
  if (orientation.mirrored) box.left = upright_width - box.left - box.width;
  if (!orientation.transposed) return box;
  return {box.left, box.top, box.width, box.height};
}

}  // namespace custom_op
