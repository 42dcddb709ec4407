package statetest

import (
	"fmt"
	"strconv"
	"sync"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

const racers = 16

func raceCases() []testCase {
	return []testCase{
		{"OfManyCreatorsExactlyOneWins", createRace},
		{"OfManyConditionalDeletesExactlyOneWins", deleteRace},
		{"NoConditionalUpdateIsLost", updateRace},
		{"ConcurrentSetsOfSeveralItemsDoNotMix", mixRace},
	}
}

// race runs f in many goroutines at once and returns the result of each.
func race(f func(i int) error) []error {
	errs := make([]error, racers)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range racers {
		wg.Go(func() {
			<-start
			errs[i] = f(i)
		})
	}
	close(start)
	wg.Wait()
	return errs
}

// winner checks that exactly one of the errors is nil and that the others are conflicts. It returns the index of the
// nil error.
func (s *suite) winner(errs []error, key string) int {
	s.Helper()
	won := -1
	for i, err := range errs {
		switch {
		case err != nil:
			s.wantConflict(err, key)
		case won >= 0:
			s.Fatalf("both %d and %d won", won, i)
		default:
			won = i
		}
	}
	if won < 0 {
		s.Fatal("no writer won")
	}
	return won
}

func createRace(s *suite) {
	ctx := s.ctx()
	for round := range 8 {
		key := s.key(fmt.Sprint("created", round))
		errs := race(func(i int) error {
			_, err := s.store.Set(ctx, state.SetRequest{Consistency: state.Strong, Items: []state.Write{
				{Key: key, Value: []byte(strconv.Itoa(i)), Concurrency: state.FirstWrite},
			}})
			return err
		})
		s.wantValue(key, strconv.Itoa(s.winner(errs, key)))
	}
}

func deleteRace(s *suite) {
	ctx := s.ctx()
	for round := range 8 {
		key := s.key(fmt.Sprint("deleted", round))
		etag := s.put(key, "1")
		errs := race(func(int) error {
			_, err := s.store.Delete(ctx, state.DeleteRequest{Key: key, ETag: etag, Consistency: state.Strong})
			return err
		})
		s.winner(errs, key)
		s.wantAbsent(key)
	}
}

func updateRace(s *suite) {
	const each = 5
	ctx, key := s.ctx(), s.key("counter")
	s.put(key, "0")
	increment := func() error {
		for {
			item, err := s.store.Get(ctx, state.GetRequest{Key: key, ReadOptions: strong()})
			if err != nil {
				return err
			}
			n, err := strconv.Atoi(string(item.Value))
			if err != nil {
				return err
			}
			_, err = s.store.Set(ctx, state.SetRequest{Consistency: state.Strong, Items: []state.Write{
				{Key: key, Value: []byte(strconv.Itoa(n + 1)), ETag: item.ETag},
			}})
			if !fault.Is(err, fault.Conflict) {
				return err
			}
		}
	}
	errs := race(func(int) error {
		for range each {
			if err := increment(); err != nil {
				return err
			}
		}
		return nil
	})
	for _, err := range errs {
		s.must(err)
	}
	s.wantValue(key, strconv.Itoa(racers*each))
}

func mixRace(s *suite) {
	can[state.Transactor](s)
	ctx, a, b := s.ctx(), s.key("a"), s.key("b")
	for range 8 {
		errs := race(func(i int) error {
			value := strconv.Itoa(i)
			_, err := s.store.Set(ctx, state.SetRequest{Consistency: state.Strong,
				Items: []state.Write{write(a, value), write(b, value)}})
			return err
		})
		for _, err := range errs {
			s.must(err)
		}
		s.wantValue(b, string(s.get(a).Value))
	}
}
