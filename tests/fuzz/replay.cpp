// Runs the target without a fuzzer: on every given file, and on copies of it with random damage.
// Prints a checksum of what was decoded up to each file.
// Usage: replay COPIES FILE...
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern uint64_t decoded_checksum;

namespace {

using File = std::vector<uint8_t>;

File read(const char* path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// Mostly changes bytes; sometimes drops or repeats some, or cuts off the end.
File damaged(File file, std::mt19937& random) {
  const auto pick = [&](size_t limit) { return static_cast<std::ptrdiff_t>(random() % limit); };
  for (auto left = 1 + pick(4); left > 0 && file.size() > 64; --left) {
    const auto at = file.begin() + 2 + pick(file.size() - 34);
    switch (pick(12)) {
      case 0:
        file.erase(at, at + 1 + pick(32));
        break;
      case 1: {
        const File part(at, at + 1 + pick(32));
        file.insert(at, part.begin(), part.end());
        break;
      }
      case 2:
        file.erase(at, file.end());
        break;
      case 3:
        *at ^= static_cast<uint8_t>(1 << pick(8));
        break;
      default:
        *at = static_cast<uint8_t>(pick(256));
    }
  }
  return file;
}

}  // namespace

int main(int count, char** words) {
  const int copies = count > 1 ? std::atoi(words[1]) : 0;
  std::mt19937 random(1);
  long executed = 0;
  for (int i = 2; i < count; ++i) {
    const File file = read(words[i]);
    LLVMFuzzerTestOneInput(file.data(), file.size());
    for (int copy = 0; copy < copies; ++copy) {
      const File broken = damaged(file, random);
      LLVMFuzzerTestOneInput(broken.data(), broken.size());
    }
    executed += copies + 1;
    std::printf("%016" PRIx64 " %s\n", decoded_checksum, words[i]);
  }
  std::printf("%ld inputs\n", executed);
  return executed > 0 ? 0 : 1;
}
