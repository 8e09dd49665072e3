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
  // Vector loads that cross cache lines take twice the time.
  struct alignas(64) Block {
    float values[16];
  };

  void set_weights(int64_t kernel_size, double sigma);
  void blur_row(const uint8_t* row, int64_t size, float* out);
  void blur_columns(int64_t y, int64_t size, uint8_t* out);
  void add_up(int64_t values, float* out) const;
  float* blurred(int64_t y);

  int64_t radius_ = 0, stride_ = 0;  // of ring_, in blocks
  std::vector<float> weights_;       // of the center, then of its neighbors on one side
  std::vector<float> line_;          // a row between its reflections
  std::vector<Block> ring_;          // the last 2 * radius_ + 1 rows, blurred along the row
  std::vector<float> sums_;
  // What add_up adds: the center, and its neighbors at each distance.
  std::vector<const float*> before_, after_;
};

}  // namespace custom_op
