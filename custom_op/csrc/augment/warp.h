// Operations that move pixels.
#pragma once

#include <vector>

#include "augment/canvas.h"
#include "augment/operations.h"

namespace custom_op {

// Where pixel (x, y) of the result comes from: column x_from_x * x + x_from_y * y + x_start, and
// the row in the same way.
struct Placement {
  double x_from_x, x_from_y, x_start, y_from_x, y_from_y, y_start;
};

// Of a rotation, shear or translation of a crop of `size` x `size`.
Placement placement_of(OperationKind kind, float amount, int64_t size);

// Keeps its buffer for the next image.
class Warp {
 public:
  // As torch's grid_sample does it, with `fill` in place of pixels outside the image.
  void apply(const Canvas& from, const Placement& placement, bool bilinear, const Rgb& fill,
             Canvas& to);

 private:
  std::vector<uint8_t> fill_;     // a row
  std::vector<uint64_t> spread_;  // see Note [Three channels in one number]
};

void erase(int64_t top, int64_t left, int64_t height, int64_t width, const Rgb& fill,
           Canvas& canvas);

}  // namespace custom_op
