package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"
)

// operation is the request that a client repeats.
type operation string

// The measured operations. Strong reads and writes are linearizable. One node answers an eventual read without
// contacting the others; etcd calls this a serializable read. A single Redis server has only eventual reads. For
// lockUnlock, each client has a lock of its own, so the lock is always free.
const (
	strongSave   operation = "strong save"
	strongRead   operation = "strong read"
	eventualRead operation = "eventual read"
	lockUnlock   operation = "lock and unlock"
	call         operation = "call" // call of an application, which returns the value
)

// reads reports whether an operation reads values. Such values must be written before the measurement.
func (o operation) reads() bool { return o == strongRead || o == eventualRead || o == call }

// client makes one request after another. It is not safe for concurrent use.
type client interface {
	save(ctx context.Context, key, value string) error
	read(ctx context.Context, key string, strong bool) (value string, err error)
	// lock acquires a lock, and releases it.
	lock(ctx context.Context, name string) error
}

// lockTime is the expiry of locks.
const lockTime = time.Minute

// errLocked is the error of a lock that should be free.
var errLocked = errors.New("the lock has another owner, or was lost")

// store is a running system.
type store interface {
	name() string
	about() string // version, settings and client, for the report
	// cpu returns the CPU time that the processes of the store have used since their start, and false if it is
	// unknown.
	cpu() (time.Duration, bool)
	end()
}

// keyed is a store of values.
type keyed interface {
	store
	// clients returns n clients, spread over the nodes. They are closed with the store.
	clients(n int) ([]client, error)
}

// clientsOf returns n clients of a store, which must be keyed.
func clientsOf(st store, n int) ([]client, error) {
	k, ok := st.(keyed)
	if !ok {
		return nil, fmt.Errorf("%s has no values: %w", st.name(), errors.ErrUnsupported)
	}
	return k.clients(n)
}

// figures are the results of one operation in several turns.
type figures struct {
	count   int
	elapsed time.Duration
	cpu     time.Duration // CPU time of the processes of the store; 0 = unknown
	worker  time.Duration // CPU time of this process if it runs the workers; 0 = not measured
	turns   []float64     // requests per second of each turn
	buckets [400]int      // latency histogram from 1 microsecond; each bucket is 5 % wider than the previous one
}

const growth = 1.05

func (f *figures) add(d time.Duration) { f.addMany(d, 1) }

// addMany adds n requests with the same latency.
func (f *figures) addMany(d time.Duration, n int) {
	f.count += n
	b := int(math.Log(max(float64(d)/float64(time.Microsecond), 1)) / math.Log(growth))
	f.buckets[min(b, len(f.buckets)-1)] += n
}

func (f *figures) merge(other *figures) {
	f.count += other.count
	for i, n := range other.buckets {
		f.buckets[i] += n
	}
}

// rate returns requests per second.
func (f *figures) rate() float64 { return float64(f.count) / f.elapsed.Seconds() }

// String returns the table cell with the figures: requests per second, median and 99th percentile of the latency, and
// the CPU times that are known.
func (f *figures) String() string {
	s := fmt.Sprintf("%.0f, %s, %s", f.rate(), f.quantile(0.5), f.quantile(0.99))
	if f.cpu > 0 {
		s += ", " + f.cost().String()
	}
	if f.worker > 0 {
		s += ", worker " + (f.worker / time.Duration(max(f.count, 1))).Round(time.Microsecond).String()
	}
	return s
}

// cost returns the CPU time of the store per request. It is more stable than the request rate if other programs use the
// machine.
func (f *figures) cost() time.Duration {
	return (f.cpu / time.Duration(max(f.count, 1))).Round(time.Microsecond)
}

// beside returns a table cell that compares f with the figures of another store. The cell has up to three parts:
//
//   - the ratio of the request rates over all turns: the rate of f divided by that of the other store
//   - in parentheses, the lowest and the highest ratio of a single turn, if there are at least two turns
//   - the CPU time per request of the other store divided by that of f, if both are known
//
// A turn is one short measurement (see settings.turn).
func (f *figures) beside(other *figures) string {
	s := "**" + ratioText(f.rate()/other.rate()) + "**"
	if low, high := f.spread(other); high > 0 {
		s += " (" + ratioText(low) + " to " + ratioText(high) + ")"
	}
	if f.cpu > 0 && other.cpu > 0 {
		s += ", " + ratioText(float64(other.cost())/float64(max(f.cost(), 1)))
	}
	return s
}

// ratioText returns a ratio with one digit after the point, or with two digits if it is below 1.
func ratioText(ratio float64) string {
	if ratio < 1 {
		return strconv.FormatFloat(ratio, 'f', 2, 64)
	}
	return strconv.FormatFloat(ratio, 'f', 1, 64)
}

// spread compares the request rates of f and other in each turn. It returns the lowest and the highest ratio, or zeros
// if there are fewer than two turns.
func (f *figures) spread(other *figures) (low, high float64) {
	if n := len(f.turns); n < 2 || n != len(other.turns) {
		return 0, 0
	}
	ratios := make([]float64, len(f.turns))
	for i, rate := range f.turns {
		ratios[i] = rate / other.turns[i]
	}
	return slices.Min(ratios), slices.Max(ratios)
}

// quantile returns a quantile of the latency, rounded to 10 µs. For example, the median is quantile(0.5). Before
// rounding, the result is at most 5 % too high.
func (f *figures) quantile(part float64) time.Duration {
	seen, want := 0, int(math.Ceil(part*float64(f.count)))
	for i, n := range f.buckets {
		if seen += n; seen >= want {
			return time.Duration(math.Pow(growth, float64(i+1)) * float64(time.Microsecond)).Round(
				10 * time.Microsecond)
		}
	}
	return 0
}

// meter is a store that is measured with its own method instead of load.
type meter interface {
	// measure makes requests for about the time during, and adds the results to f.
	measure(ctx context.Context, f *figures, op operation, clients int, value string, during time.Duration) error
}

// load measures an operation on a store with n clients for the given duration, and adds the results to f. It stops at
// the first error or wrong value, and returns an error. A store that implements meter measures itself instead.
func load(ctx context.Context, f *figures, st store, op operation, n, keys int, value string,
	duration time.Duration) error {
	if m, ok := st.(meter); ok {
		return m.measure(ctx, f, op, n, value, duration)
	}
	clients, err := clientsOf(st, n)
	if err != nil {
		return err
	}
	return loop(ctx, f, st, n, duration, func(ctx context.Context, id, i int) error {
		key := "k" + strconv.Itoa(i%keys)
		if op == lockUnlock {
			key = "lock" + strconv.Itoa(id)
		}
		return once(ctx, clients[id], op, key, value)
	})
}

// loop measures an operation with n clients for the given duration, and adds the results to f. Each client makes the
// operation at least once, by calling a function with the number of the client and a number that is new in each call.
// The first error ends the measurement.
func loop(ctx context.Context, f *figures, st store, n int, duration time.Duration,
	call func(ctx context.Context, client, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	parts := make([]figures, n)
	var wg sync.WaitGroup
	before, known := st.cpu()
	begin := time.Now()
	for id := range n {
		wg.Go(func() {
			for i := id; (i == id || time.Since(begin) < duration) && ctx.Err() == nil; i += n {
				sent := time.Now()
				if err := call(ctx, id, i); err != nil {
					cancel(err)
					return
				}
				parts[id].add(time.Since(sent))
			}
		})
	}
	wg.Wait()
	took := time.Since(begin)
	f.elapsed += took
	if after, ok := st.cpu(); ok && known {
		f.cpu += after - before
	}
	count := 0
	for i := range parts {
		f.merge(&parts[i])
		count += parts[i].count
	}
	f.turns = append(f.turns, float64(count)/took.Seconds())
	return context.Cause(ctx)
}

func once(ctx context.Context, c client, op operation, key, value string) error {
	switch op {
	case strongSave:
		return c.save(ctx, key, value)
	case lockUnlock:
		return c.lock(ctx, key)
	}
	got, err := c.read(ctx, key, op == strongRead)
	if err == nil && got != value {
		return &wrongValueError{key: key, bytes: len(got)}
	}
	return err
}

type wrongValueError struct {
	key   string
	bytes int
}

func (e *wrongValueError) Error() string {
	return "the value of " + e.key + " is not the written one; it has " + strconv.Itoa(e.bytes) + " other bytes"
}

// fill writes value to all keys. It then waits until every node returns the value of the last key, so that later
// eventual reads find the values.
func fill(ctx context.Context, st store, keys int, value string) error {
	clients, err := clientsOf(st, 3)
	if err != nil {
		return err
	}
	for i := range keys {
		if err := clients[i%len(clients)].save(ctx, "k"+strconv.Itoa(i), value); err != nil {
			return err
		}
	}
	for _, c := range clients {
		if err := until(ctx, func() error {
			return once(ctx, c, eventualRead, "k"+strconv.Itoa(keys-1),
				value)
		}); err != nil {
			return err
		}
	}
	return nil
}

// until repeats the function try every 100 ms until try succeeds. After a minute, or when ctx ends, it returns the last
// error.
func until(ctx context.Context, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
	}
}
