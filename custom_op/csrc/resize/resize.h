// Antialiased bilinear resizing to a square. Takes one row at a time, while it is in cache.
#pragma once

#include <vector>

#include "aligned.h"
#include "resize/axis_weights.h"
#include "rows.h"

namespace custom_op {

// Receives the rows of the output, `size` pixels of 3 bytes each.
class ResizedRows {
 public:
  virtual ~ResizedRows() = default;
  virtual void resized(int64_t y, const uint8_t* pixels) = 0;
};

// The horizontal step, from a vertically filtered line to a row of the output.
class HorizontalFilter {
 public:
  // With `mirror`, the output rows run from right to left.
  void configure(int64_t length, int64_t size, bool mirror);
  // Values that may be read past the end of a line; their weights are zero.
  int64_t padding() const { return 3 * taps_; }
  // The row of pixels; valid until the next call.
  const uint8_t* apply(const int16_t* line);

 private:
  AxisWeights weights_;
  int64_t pixels_ = 0, taps_ = 0;
  AlignedVector<int16_t> arranged_;
  std::vector<int32_t> starts_;
  std::vector<uint8_t> row_;
};

class Resizer final : public RowSink {
 public:
  // For a crop of height x width. With `mirror`, the output rows run from right to left.
  void configure(int64_t height, int64_t width, int64_t size, bool mirror, ResizedRows& out);
  void begin() override;
  uint8_t* next() override;
  void written() override;

 private:
  void emit(int64_t y);

  AxisWeights vertical_;
  HorizontalFilter horizontal_;
  int64_t row_values_ = 0, stride_ = 0, capacity_ = 0;
  int64_t received_ = 0, emitted_ = 0;
  AlignedVector<uint8_t> ring_;
  AlignedVector<int16_t> line_;
  std::vector<const uint8_t*> rows_;
  ResizedRows* out_ = nullptr;
};

}  // namespace custom_op
