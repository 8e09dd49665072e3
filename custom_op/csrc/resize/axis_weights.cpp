#include "resize/axis_weights.h"

#include <algorithm>
#include <cmath>

namespace custom_op {

void AxisWeights::compute(int64_t length, int64_t size) {
  const double scale = static_cast<double>(length) / static_cast<double>(size);
  const double support = std::max(scale, 1.0);
  const auto most = static_cast<int64_t>(std::ceil(support)) * 2 + 1;
  stride_ = (most + 1) / 2 * 2;
  longest_ = 0;
  first_.resize(static_cast<size_t>(size));
  count_.resize(static_cast<size_t>(size));
  weights_.assign(static_cast<size_t>(size * stride_), 0);
  exact_.resize(static_cast<size_t>(most));
  for (int64_t i = 0; i < size; ++i) {
    const double centre = scale * (static_cast<double>(i) + 0.5);
    const auto first = std::max<int64_t>(static_cast<int64_t>(centre - support + 0.5), 0);
    const auto last = std::min<int64_t>(static_cast<int64_t>(centre + support + 0.5), length);
    const int64_t count = std::min(last - first, most);
    double total = 0;
    for (int64_t k = 0; k < count; ++k) {
      const double distance = (static_cast<double>(first + k) - centre + 0.5) / support;
      total += exact_[static_cast<size_t>(k)] = std::max(0.0, 1.0 - std::abs(distance));
    }
    first_[static_cast<size_t>(i)] = first;
    count_[static_cast<size_t>(i)] = count;
    longest_ = std::max(longest_, count);
    quantise(total, count, weights_.data() + i * stride_);
  }
}

void AxisWeights::quantise(double total, int64_t count, int16_t* weights) const {
  int rest = 1 << kBits, heaviest = 0;
  for (int64_t k = 0; k < count; ++k) {
    weights[k] = static_cast<int16_t>(exact_[static_cast<size_t>(k)] / total * (1 << kBits) + 0.5);
    rest -= weights[k];
    if (weights[k] > weights[heaviest]) heaviest = static_cast<int>(k);
  }
  // The weights must sum to 1 << kBits, so that a uniform area keeps its value.
  weights[heaviest] = static_cast<int16_t>(weights[heaviest] + rest);
}

}  // namespace custom_op
