// Operations that read the neighbors of a pixel.
#pragma once

#include <vector>

#include "augment/canvas.h"

namespace custom_op {

// Blends `from` with its 3x3 mean, in which the center counts five times. The edges stay.
void sharpen(const Canvas& from, float factor, Canvas& to);

// Separable, in floats. The edges are reflected. Keeps its buffers for the next image.
class GaussianBlur {
 public:
  void apply(const Canvas& from, int64_t kernel_size, float sigma, Canvas& to);

 private:
  void set_weights(int64_t kernel_size, double sigma);
  void sum_rows(const Canvas& from, int64_t y);
  void sum_columns(int64_t size, uint8_t* out);

  std::vector<float> weights_;  // of the center, then of its neighbors on one side
  std::vector<float> line_;     // a row between its reflections
};

}  // namespace custom_op
