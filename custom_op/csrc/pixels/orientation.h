// EXIF orientations: from upright to stored boxes, from stored to upright pixels.
#pragma once

#include "types.h"

namespace custom_op {

// How the stored image becomes upright: transposed first, then mirrored.
struct Orientation {
  bool transposed, mirrored, flipped;  // along the diagonal, left to right, top to bottom
};

inline Orientation orientation_of(int exif) {
  return {exif >= 5, exif == 2 || exif == 3 || exif == 6 || exif == 7,
          exif == 3 || exif == 4 || exif == 7 || exif == 8};
}

// `height` and `width` are the stored image's.
inline Box stored_box(const Orientation& orientation, Box box, int64_t height, int64_t width) {
  const int64_t upright_height = orientation.transposed ? width : height;
  const int64_t upright_width = orientation.transposed ? height : width;
  if (orientation.flipped) box.top = upright_height - box.top - box.height;
  if (orientation.mirrored) box.left = upright_width - box.left - box.width;
  if (!orientation.transposed) return box;
  return {box.left, box.top, box.width, box.height};
}

}  // namespace custom_op
