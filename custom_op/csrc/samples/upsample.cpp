#ifdef __AVX2__

#include "samples/upsample.h"

#include "samples/padding.h"

namespace custom_op {
namespace {

// Calls each(i) for every i < count and up to the next multiple of kAtOnce, so that compilers
// vectorize the inner loop without a remainder.
template <typename Each>
void for_each(int64_t count, Each each) {
  constexpr int64_t kAtOnce = kSamplePadding;
  for (int64_t start = 0; start < count; start += kAtOnce) {
    for (int64_t i = start; i < start + kAtOnce; ++i) each(i);
  }
}

}  // namespace

void double_height(const uint8_t* __restrict near, const uint8_t* __restrict far, bool below,
                   int64_t count, uint8_t* __restrict out) {
  const uint16_t rounding = below ? 2 : 1;
  for_each(count, [=](int64_t i) {
    out[i] = static_cast<uint8_t>((3 * near[i] + far[i] + rounding) >> 2);
  });
}

void sum_rows(const uint8_t* __restrict near, const uint8_t* __restrict far, int64_t count,
              uint16_t* __restrict out) {
  for_each(count + 2,
           [=](int64_t i) { out[i - 1] = static_cast<uint16_t>(3 * near[i - 1] + far[i - 1]); });
}

}  // namespace custom_op

#endif
