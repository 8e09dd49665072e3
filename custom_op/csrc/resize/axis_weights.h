// Weights of the antialiased bilinear filter on one axis.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace custom_op {

// Weights of the triangle filter for every output sample, as torch computes them for uint8.
class AxisWeights {
 public:
  static constexpr int kBits = 14;

  // For a crop of `length` samples.
  void compute(int64_t length, int64_t size);
  // The weights that samples of half the resolution have in results with the weights `pixels`, if
  // they are first upsampled as in Note [Triangle filter]. Pixel 0 of `pixels` is pixel `origin` of
  // an image with `samples` samples; first(i) counts these from the edge of the image.
  void halve(const AxisWeights& pixels, int64_t origin, int64_t samples);
  int64_t size() const { return static_cast<int64_t>(first_.size()); }
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

// The same weights in bytes, in groups of kGroup.
class ByteWeights {
 public:
  static constexpr int kBits = 7;
  static constexpr int64_t kGroup = 4;

  void round(const AxisWeights& weights);
  // Weights that sum to 1 << kBits, then zeros up to groups() * kGroup. A byte holds at
  // most 127, so a single weight of 128 leaves 1 to the tap after it.
  const int8_t* weights(int64_t i) const { return weights_.data() + i * groups_ * kGroup; }
  int64_t groups() const { return groups_; }

 private:
  std::vector<int8_t> weights_;
  int64_t groups_ = 0;
};

}  // namespace custom_op
