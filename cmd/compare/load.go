package main

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"
)

// operation is what a client does over and over.
type operation string

// A strong read or write is linearizable. An eventual read is what a store answers from
// one node alone: etcd calls it serializable, and a single Redis knows no other.
const (
	strongSave   operation = "strong save"
	strongRead   operation = "strong read"
	eventualRead operation = "eventual read"
)

var operations = []operation{strongSave, strongRead, eventualRead}

// client makes one request after another. It is not for concurrent use.
type client interface {
	save(ctx context.Context, key, value string) error
	read(ctx context.Context, key string, strong bool) (value string, err error)
}

// store is a running system.
type store interface {
	name() string
	about() string // version, settings and client, for the report
	// clients are n clients, spread over the nodes. They live as long as the store.
	clients(n int) ([]client, error)
	// cpu is what the processes of the store have spent on processors since they were
	// started, and false where that cannot be told.
	cpu() (time.Duration, bool)
	end()
}

// figures are what turns have added up to.
type figures struct {
	count   int
	elapsed time.Duration
	cpu     time.Duration // of the processes of the store; 0 is not known
	buckets [400]int      // of latency, each 5 % wider than the one before, from 1 microsecond
}

const growth = 1.05

func (f *figures) add(d time.Duration) {
	f.count++
	b := int(math.Log(max(float64(d)/float64(time.Microsecond), 1)) / math.Log(growth))
	f.buckets[min(b, len(f.buckets)-1)]++
}

func (f *figures) merge(other *figures) {
	f.count += other.count
	for i, n := range other.buckets {
		f.buckets[i] += n
	}
}

// rate is requests per second.
func (f *figures) rate() float64 { return float64(f.count) / f.elapsed.Seconds() }

// String is what stands in a cell of a table.
func (f *figures) String() string {
	s := fmt.Sprintf("%.0f, %s, %s", f.rate(), f.quantile(0.5), f.quantile(0.99))
	if f.cpu > 0 {
		s += ", " + f.cost().String()
	}
	return s
}

// cost is what a request costs the store in time of processors. Unlike a rate it says the
// same on a machine that others use as well.
func (f *figures) cost() time.Duration {
	return (f.cpu / time.Duration(max(f.count, 1))).Round(time.Microsecond)
}

// beside compares figures with those of another store: how many times as many requests, and
// how many times fewer processors for each.
func (f *figures) beside(other *figures) string {
	s := fmt.Sprintf("**%.1f**", f.rate()/other.rate())
	if f.cpu > 0 && other.cpu > 0 {
		s += fmt.Sprintf(", %.1f", float64(other.cost())/float64(max(f.cost(), 1)))
	}
	return s
}

// quantile is the latency that a part of the requests did not exceed, within 5 %.
func (f *figures) quantile(part float64) time.Duration {
	seen, want := 0, int(math.Ceil(part*float64(f.count)))
	for i, n := range f.buckets {
		if seen += n; seen >= want {
			return time.Duration(math.Pow(growth, float64(i+1)) * float64(time.Microsecond)).Round(10 * time.Microsecond)
		}
	}
	return 0
}

// load keeps n clients busy for a while. Every answer is checked: a value that is not the
// one that was written, or an error, ends the run.
func load(ctx context.Context, f *figures, st store, op operation, n, keys int, value string, during time.Duration) error {
	clients, err := st.clients(n)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	parts := make([]figures, n)
	var wg sync.WaitGroup
	before, known := st.cpu()
	begin := time.Now()
	for id, c := range clients {
		wg.Go(func() {
			for i := id; time.Since(begin) < during && ctx.Err() == nil; i += n {
				sent := time.Now()
				if err := once(ctx, c, op, "k"+strconv.Itoa(i%keys), value); err != nil {
					cancel(err)
					return
				}
				parts[id].add(time.Since(sent))
			}
		})
	}
	wg.Wait()
	f.elapsed += time.Since(begin)
	if after, ok := st.cpu(); ok && known {
		f.cpu += after - before
	}
	for i := range parts {
		f.merge(&parts[i])
	}
	return context.Cause(ctx)
}

func once(ctx context.Context, c client, op operation, key, value string) error {
	if op == strongSave {
		return c.save(ctx, key, value)
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
	return "the value of " + e.key + " is not what was written, but " + strconv.Itoa(e.bytes) + " other bytes"
}

// fill writes every key, and waits until all nodes answer with the last one, so that no
// eventual read finds nothing.
func fill(ctx context.Context, st store, keys int, value string) error {
	clients, err := st.clients(3)
	if err != nil {
		return err
	}
	for i := range keys {
		if err := clients[i%len(clients)].save(ctx, "k"+strconv.Itoa(i), value); err != nil {
			return err
		}
	}
	for _, c := range clients {
		if err := until(ctx, func() error { return once(ctx, c, eventualRead, "k"+strconv.Itoa(keys-1), value) }); err != nil {
			return err
		}
	}
	return nil
}

// until tries for a minute, ten times a second.
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
