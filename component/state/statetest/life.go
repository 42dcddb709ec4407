package statetest

import (
	"context"
	"slices"
	"sync"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

func lifeCases() []testCase {
	return []testCase{
		{"CloseIsIdempotent", closeTwice},
		{"AClosedStoreIsUnavailable", useAfterClose},
		{"ClosingUnderLoadIsSafe", closeUnderLoad},
		{"ACancelledCallChangesNothing", cancelled},
		{"FeaturesMatchAbilities", features},
	}
}

// call is a call of one method of a store. Tests use a list of calls to try every method. The list omits methods that
// the store does not implement.
type call struct {
	name string
	do   func(context.Context) error
}

func (s *suite) calls(key string) []call {
	all := []call{
		{"Get", func(ctx context.Context) error {
			_, err := s.store.Get(ctx, state.GetRequest{Key: key, ReadOptions: strong()})
			return err
		}},
		{"Set", func(ctx context.Context) error {
			_, err := s.store.Set(ctx, state.SetRequest{Items: []state.Write{write(key, "new")},
				Consistency: state.Strong})
			return err
		}},
		{"Delete", func(ctx context.Context) error {
			_, err := s.store.Delete(ctx, state.DeleteRequest{Key: key, Consistency: state.Strong})
			return err
		}},
	}
	if tx := state.AbilitiesOf(s.store).Transactor; tx != nil {
		all = append(all, call{"Transact", func(ctx context.Context) error {
			_, err := tx.Transact(ctx, state.TransactRequest{Operations: []state.Operation{upsert(key, "new")},
				Consistency: state.Strong})
			return err
		}})
	}
	if b := state.AbilitiesOf(s.store).BulkGetter; b != nil {
		all = append(all, call{"BulkGet", func(ctx context.Context) error {
			items, err := b.BulkGet(ctx, state.BulkGetRequest{Keys: []string{key}, ReadOptions: strong()})
			if err == nil && len(items) == 1 {
				return items[0].Err
			}
			return err
		}})
	}
	if l := state.AbilitiesOf(s.store).Lister; l != nil {
		all = append(all, call{"List", func(ctx context.Context) error {
			_, err := l.List(ctx, state.ListRequest{Prefix: key, ReadOptions: strong()})
			return err
		}})
	}
	return all
}

func closeTwice(s *suite) {
	s.put(s.key("k"), "1")
	for range 3 {
		if err := s.store.Close(); err != nil {
			s.Fatalf("Close: %v", err)
		}
	}
}

func useAfterClose(s *suite) {
	s.must(s.store.Close())
	for _, c := range s.calls(s.key("k")) {
		if err := c.do(s.ctx()); !fault.Is(err, fault.Unavailable) {
			s.Errorf("%s after Close: %v with code %q, want %q", c.name, err, fault.CodeOf(err), fault.Unavailable)
		}
	}
}

func closeUnderLoad(s *suite) {
	ctx := s.ctx()
	allowed := []fault.Code{"", fault.Unavailable, fault.Timeout, fault.Indeterminate}
	started := make(chan struct{})
	var begin sync.Once
	var wg sync.WaitGroup
	for _, c := range s.calls(s.key("k")) {
		for range 4 {
			wg.Go(func() {
				for {
					err := c.do(ctx)
					begin.Do(func() { close(started) })
					if !slices.Contains(allowed, fault.CodeOf(err)) {
						s.Errorf("%s while closing: %v with code %q", c.name, err, fault.CodeOf(err))
					}
					if err != nil {
						return
					}
				}
			})
		}
	}
	<-started
	if err := s.store.Close(); err != nil {
		s.Errorf("Close: %v", err)
	}
	wg.Wait()
}

func cancelled(s *suite) {
	ctx, cancel := context.WithCancel(s.Context())
	cancel()
	key := s.key("k")
	etag := s.put(key, "old")
	for _, c := range s.calls(key) {
		if err := c.do(ctx); !fault.Is(err, fault.Timeout) {
			s.Errorf("%s with a cancelled context: %v with code %q, want %q", c.name, err, fault.CodeOf(err),
				fault.Timeout)
		}
	}
	if item := s.wantValue(key, "old"); item.ETag != etag {
		s.Errorf("a cancelled call changed the ETag from %q to %q", etag, item.ETag)
	}
}

func features(s *suite) {
	all := state.FeaturesOf(s.store)
	if !slices.Contains(all, state.FeatureETag) {
		s.Errorf("features %v lack %s, which every store has", all, state.FeatureETag)
	}
	can := state.AbilitiesOf(s.store).Transactor != nil
	if says := slices.Contains(all, state.FeatureTransactional); says != can {
		s.Errorf("features %v say %s: %v, but the store is a Transactor: %v", all, state.FeatureTransactional, says,
			can)
	}
}

func requestCases() []testCase {
	return []testCase{
		{"ARetriedRequestIsDoneOnce", retryOnce},
		{"ARequestIDServesOneRequestOnly", retryOther},
	}
}

func (s *suite) needRequestIDs() {
	s.Helper()
	if !s.options.RequestIDs {
		s.Skip("the store does not keep request ids")
	}
}

func retryOnce(s *suite) {
	s.needRequestIDs()
	key := s.key("k")
	etag := s.put(key, "1")
	r := state.SetRequest{RequestID: "r1", Consistency: state.Strong,
		Items: []state.Write{{Key: key, Value: []byte("2"), ETag: etag}}}
	first, err := s.store.Set(s.ctx(), r)
	s.must(err)
	second, err := s.store.Set(s.ctx(), r)
	s.must(err)
	if !slices.Equal(first.ETags, second.ETags) {
		s.Errorf("the retry returned ETags %q, the request %q", second.ETags, first.ETags)
	}
	if got := s.wantValue(key, "2").ETag; got != first.ETags[0] {
		s.Errorf("the retry changed the ETag from %q to %q", first.ETags[0], got)
	}
	d := state.DeleteRequest{Key: key, ETag: first.ETags[0], RequestID: "r2"}
	s.delete(d)
	s.put(key, "3")
	s.delete(d)
	s.wantValue(key, "3")
}

func retryOther(s *suite) {
	s.needRequestIDs()
	key := s.key("k")
	r := state.SetRequest{RequestID: "r1", Consistency: state.Strong, Items: []state.Write{write(key, "1")}}
	_, err := s.store.Set(s.ctx(), r)
	s.must(err)
	r.Items = []state.Write{write(key, "2")}
	if _, err := s.store.Set(s.ctx(), r); !fault.Is(err, fault.Invalid) {
		s.Errorf("another request with a used id: %v with code %q, want %q", err, fault.CodeOf(err), fault.Invalid)
	}
	s.wantValue(key, "1")
}
