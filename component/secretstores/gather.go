package secretstores

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/quorate/quorate/internal/fault"
)

// gatherers is how many secrets one bulk read requests at a time.
const gatherers = 8

// MaxBulk is the largest number of secrets in one bulk read.
const MaxBulk = 10_000

// largestBulk is the maximum total size in bytes of the secrets in one bulk read. textCost is the overhead in bytes
// that is added to the length of each name, key and value.
const (
	largestBulk = 64 << 20
	textCost    = 64
)

// Tally adds up the size of the secrets in one bulk read. It limits the memory that a faulty or hostile server can make
// the node use. The zero value is empty.
type Tally struct{ size int }

// Add adds the size of a secret. It returns fault.TooLarge if the total exceeds 64 MiB.
func (t *Tally) Add(name string, secret map[string]string) error {
	t.size += textCost + len(name)
	for key, value := range secret {
		t.size += 2*textCost + len(key) + len(value)
	}
	if t.size <= largestBulk {
		return nil
	}
	return &fault.Error{Code: fault.TooLarge, Op: "secretstores.Bulk",
		Msg: "the secrets of the store have more than 64 MiB together", Hint: "read secrets one by one"}
}

// Gather reads the named secrets one by one, for stores that cannot read several secrets in one call. It calls get for
// each name, several times in parallel. If get returns fault.NotFound, the secret is omitted.
//
// At the first other error, Gather stops and returns this error with the name of the secret. It returns fault.TooLarge
// if there are more than MaxBulk names, or if the secrets exceed the limit of Tally.
func Gather(ctx context.Context, names []string,
	get func(ctx context.Context, name string) (map[string]string, error)) (map[string]map[string]string, error) {
	if err := Fits(len(names)); err != nil {
		return nil, err
	}
	var mu sync.Mutex
	out := make(map[string]map[string]string, len(names)) // guarded by mu
	var tally Tally                                       // guarded by mu
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(gatherers)
	for _, name := range names {
		group.Go(func() error {
			secret, err := get(ctx, name)
			switch {
			case fault.Is(err, fault.NotFound):
				return nil
			case err != nil:
				return fault.Wrap(err, "secretstores.Gather", "reading the secret "+name)
			}
			mu.Lock()
			defer mu.Unlock()
			out[name] = secret
			return tally.Add(name, secret)
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return out, nil
}

// Fits returns fault.TooLarge if count, the number of secrets in a bulk read, is above MaxBulk.
func Fits(count int) error {
	if count <= MaxBulk {
		return nil
	}
	return &fault.Error{Code: fault.TooLarge, Op: "secretstores.Bulk",
		Msg:  "the store has more than 10000 secrets, the limit of a bulk read",
		Hint: "read secrets one by one"}
}
