package api_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// slow is a store that delays reads and records how many run at the same time.
type slow struct {
	state.Store
	gauge gauge
	proof func(key string) state.Proof
}

func (s *slow) Get(ctx context.Context, r state.GetRequest) (state.Item, error) {
	s.gauge.enter()
	defer s.gauge.leave()
	select {
	case <-time.After(10 * time.Millisecond):
	case <-ctx.Done():
		return state.Item{}, fault.Wrap(ctx.Err(), "slow.Get", "gave up")
	}
	item := state.Item{Key: r.Key, ETag: "1", Value: []byte(`"` + r.Key + `"`)}
	if s.proof != nil {
		item.Proof = s.proof(r.Key)
	}
	return item, nil
}

func keys(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("k%03d", i)
	}
	return out
}

func TestBulk_PlainStoreReadsAreBoundedAndOrdered(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name                    string
		limit, asked, n, atMost int
	}{
		{"as requested", 32, 4, 40, 4},
		{"never above the limit", 8, 1000, 40, 8},
		{"without a wish the limit", 8, 0, 40, 8},
		{"no more workers than keys", 32, 0, 3, 3},
		{"one by one", 32, 1, 5, 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := &slow{}
				s := service(store, api.Limits{Parallelism: test.limit}, nil)
				bulk, err := s.BulkGet(t.Context(), api.BulkGetRequest{Store: "orders", Keys: keys(test.n),
					Parallelism: test.asked})
				if err != nil {
					t.Fatal(err)
				}
				if most := store.gauge.most.Load(); most != int64(test.atMost) {
					t.Errorf("%d reads at once, want %d", most, test.atMost)
				}
				for i, item := range bulk.Items {
					if want := keys(test.n)[i]; item.Key != want || string(item.Value) != `"shop||`+want+`"` {
						t.Errorf("item %d is %q = %s, want %q", i, item.Key, item.Value, want)
					}
				}
			})
		})
	}
}

func TestBulk_TimeoutFailsWholeRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := service(&slow{}, api.Limits{Parallelism: 1}, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 25*time.Millisecond)
		defer cancel()
		_, err := s.BulkGet(ctx, api.BulkGetRequest{Store: "orders", Keys: keys(10)})
		if e := api.AsError(err); e.Code != api.CodeStateBulkGet || e.Kind != api.Timeout {
			t.Errorf("%v", err)
		}
	})
}

func TestBulk_FreshnessIsThatOfOldestItem(t *testing.T) {
	t.Parallel()
	linear := state.Proof{Level: state.Linearizable}
	session := state.Proof{Level: state.SessionLevel, Age: 5 * time.Millisecond, Session: "s"}
	bounded := state.Proof{Level: state.Bounded, Age: 9 * time.Millisecond}
	unknown := state.Proof{Level: state.Stale, Age: -1}
	tests := []struct {
		name  string
		given []state.Proof
		want  state.Proof
	}{
		{"all linearizable", []state.Proof{linear, linear}, linear},
		{"one session", []state.Proof{linear, session, linear}, session},
		{"the greater age", []state.Proof{bounded, session},
			state.Proof{Level: state.Bounded, Age: 9 * time.Millisecond, Session: "s"}},
		{"an unknown age is the greatest", []state.Proof{unknown, session},
			state.Proof{Level: state.Stale, Age: -1, Session: "s"}},
		{"no promise is the weakest", []state.Proof{{}, linear}, state.Proof{}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			i := -1
			store := &slow{proof: func(string) state.Proof { i++; return test.given[i] }}
			s := service(store, api.Limits{Parallelism: 1}, nil)
			bulk, err := s.BulkGet(t.Context(), api.BulkGetRequest{Store: "orders", Keys: keys(len(test.given))})
			if err != nil {
				t.Fatal(err)
			}
			if bulk.Proof != test.want {
				t.Errorf("got %+v, want %+v", bulk.Proof, test.want)
			}
		})
	}
}

// short is a store that returns fewer items than requested.
type short struct{ state.Store }

func (short) BulkGet(context.Context, state.BulkGetRequest) ([]state.Item, error) {
	return []state.Item{{}}, nil
}

func TestBulk_RefusesWrongItemCountFromStore(t *testing.T) {
	t.Parallel()
	_, err := service(short{}, api.Limits{}, nil).BulkGet(t.Context(),
		api.BulkGetRequest{Store: "orders", Keys: keys(2)})
	var internal *fault.Error
	if !errors.As(err, &internal) || internal.Code != fault.Internal {
		t.Errorf("%v", err)
	}
}
