// The thread pool of the batch operator.
#pragma once

#include <cstdint>
#include <functional>

namespace custom_op {

// Calls work(i) once for every i < count, on the calling thread and up to threads - 1 others; each
// thread takes the next i when it is ready. `work` must not throw. `threads` == 0 means one thread
// per CPU that this process may use. Threads start on first use and stay for later calls; a forked
// child starts its own.
void for_each_index(int64_t count, int64_t threads, const std::function<void(int64_t)>& work);

}  // namespace custom_op
