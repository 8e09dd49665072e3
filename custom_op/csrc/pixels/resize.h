// Antialiased bilinear resizing to a square. Takes one row at a time, while it is in cache.
#pragma once

#include <vector>

#include "rows.h"

namespace custom_op {

// The crop on one axis of the input, in input samples.
struct Axis {
  double origin;    // edge of the crop; a fraction if the decode is scaled
  double length;    // length of the crop
  int64_t samples;  // number of input samples
};

// Weights of the triangle filter for every output sample, as torch computes them for uint8.
class AxisWeights {
 public:
  static constexpr int kBits = 14;

  void compute(const Axis& axis, int64_t size);
  int64_t first(int64_t i) const { return first_[static_cast<size_t>(i)]; }
  int64_t count(int64_t i) const { return count_[static_cast<size_t>(i)]; }
  int64_t longest() const { return longest_; }
  // count(i) weights that sum to 1 << kBits, then zeros up to longest() rounded up to even.
  const int16_t* weights(int64_t i) const { return weights_.data() + i * stride_; }

 private:
  void quantise(const double* exact, double total, int64_t count, int16_t* weights) const;

  std::vector<int64_t> first_, count_;
  std::vector<int16_t> weights_;
  std::vector<double> exact_;
  int64_t longest_ = 0, stride_ = 0;
};

// Receives the rows of the output, `size` pixels of 3 bytes each.
class ResizedRows {
 public:
  virtual ~ResizedRows() = default;
  virtual void resized(int64_t y, const uint8_t* pixels) = 0;
};

class Resizer final : public RowSink {
 public:
  // With `mirror`, the output rows run from right to left.
  void configure(const Axis& vertical, const Axis& horizontal, int64_t size, bool mirror,
                 ResizedRows& out);
  void begin() override;
  uint8_t* next() override;
  void written() override;

 private:
  void arrange_horizontal_weights(bool mirror);
  void emit(int64_t y);

  AxisWeights vertical_, horizontal_;
  int64_t size_ = 0, row_values_ = 0, stride_ = 0, capacity_ = 0, taps_ = 0;
  int64_t received_ = 0, emitted_ = 0;
  std::vector<uint8_t> ring_, resized_;
  std::vector<int16_t> line_, arranged_;
  std::vector<int32_t> first_;
  std::vector<const uint8_t*> rows_;
  ResizedRows* out_ = nullptr;
};

}  // namespace custom_op
