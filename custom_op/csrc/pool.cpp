#include "pool.h"

#include <pthread.h>

#ifdef __linux__
#include <sched.h>
#endif

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

namespace custom_op {
namespace {

struct Job {
  Job(const std::function<void(int64_t)>& given_work, int64_t given_count)
      : work(given_work), count(given_count) {}

  const std::function<void(int64_t)>& work;
  int64_t count;
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  std::condition_variable done;
  int64_t helpers = 0;  // threads in run(), without the caller; guarded by mutex

  void run() {
    for (int64_t i; (i = next.fetch_add(1)) < count;) work(i);
  }
};

class Pool {
 public:
  // Offers `job` to `helpers` threads. The job may be finished before they take it.
  void offer(const std::shared_ptr<Job>& job, int64_t helpers) {
    const std::lock_guard<std::mutex> guard(mutex_);
    for (int64_t i = 0; i < helpers; ++i) offers_.push_back(job);
    while (threads_ < static_cast<int64_t>(offers_.size())) {
      try {
        std::thread([this] { serve(); }).detach();
      } catch (const std::system_error&) {
        break;  // The caller completes the job with the threads that have started.
      }
      ++threads_;
    }
    available_.notify_all();
  }

  void withdraw(const std::shared_ptr<Job>& job) {
    const std::lock_guard<std::mutex> guard(mutex_);
    offers_.erase(std::remove(offers_.begin(), offers_.end(), job), offers_.end());
  }

 private:
  [[noreturn]] void serve() {
    while (true) {
      std::shared_ptr<Job> job;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        available_.wait(lock, [this] { return !offers_.empty(); });
        job = offers_.front();
        offers_.pop_front();
        // Guarded by the pool's mutex, too: a withdrawn job gets no more helpers.
        const std::lock_guard<std::mutex> guard(job->mutex);
        ++job->helpers;
      }
      job->run();
      const std::lock_guard<std::mutex> guard(job->mutex);
      if (--job->helpers == 0) job->done.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable available_;
  std::deque<std::shared_ptr<Job>> offers_;
  int64_t threads_ = 0;
};

// Never destroyed, because its threads wait in it until the process ends. A forked child has its
// memory but not its threads, and its mutexes may be locked, so the child creates a new pool.
Pool* pool = nullptr;

Pool& current_pool() {
  static std::once_flag once;
  std::call_once(once, [] {
    pool = new Pool;
    pthread_atfork(nullptr, nullptr, [] { pool = new Pool; });
  });
  return *pool;
}

int64_t usable_cpus() {
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  return std::max<int64_t>(std::thread::hardware_concurrency(), 1);
}

}  // namespace

void for_each_index(int64_t count, int64_t threads, const std::function<void(int64_t)>& work) {
  const int64_t wanted = threads > 0 ? threads : usable_cpus();
  const int64_t helpers = std::min(wanted, count) - 1;
  const auto job = std::make_shared<Job>(work, count);
  if (helpers > 0) current_pool().offer(job, helpers);
  job->run();
  if (helpers <= 0) return;
  current_pool().withdraw(job);
  std::unique_lock<std::mutex> lock(job->mutex);
  job->done.wait(lock, [&] { return job->helpers == 0; });
}

}  // namespace custom_op
