package statetest

import (
	"time"

	"github.com/quorate/quorate/component/state"
)

func expiryCases() []testCase {
	return []testCase{
		{"AValueExpiresAfterItsTTLAndNotBefore", expiryAfterTTL},
		{"AValueExpiresAtAnInstant", expiryAtInstant},
		{"ALaterWriteReplacesTheTTL", expiryReplaced},
		{"AnExpiredKeyIsAbsentEverywhere", expiryEverywhere},
		{"AnExpiredKeyIsAbsentForConditions", expiryConditions},
		{"ExpiryIsPartOfATransaction", expiryTransact},
	}
}

const ttl = 100 * time.Second

// clock returns the suite's clock, which is required for a store with TTLs.
func (s *suite) clock() *Clock {
	s.Helper()
	if !s.hasTTL() {
		s.Skip("the store has no TTL")
	}
	if s.options.Clock == nil {
		s.Fatal("the store has a TTL but Options.Clock is not set")
	}
	return s.options.Clock
}

func lasting(key, value string, seconds int64) state.Write {
	return state.Write{Key: key, Value: []byte(value), TTL: state.TTL{Set: true, Seconds: seconds}}
}

func expiryAfterTTL(s *suite) {
	clock, key := s.clock(), s.key("k")
	s.set(lasting(key, "1", int64(ttl/time.Second)))
	want := clock.Now().Add(ttl)
	if got := s.wantValue(key, "1").Expires; got.Before(want.Add(-5*time.Second)) ||
		got.After(want.Add(5*time.Second)) {
		s.Errorf("the value says it expires at %v, want about %v", got, want)
	}
	clock.Advance(ttl - 5*time.Second)
	s.wantValue(key, "1")
	clock.Advance(10 * time.Second)
	s.wantAbsent(key)
}

func expiryAtInstant(s *suite) {
	clock, key := s.clock(), s.key("k")
	at := clock.Now().Add(ttl)
	s.set(state.Write{Key: key, Value: []byte("1"), TTL: state.TTL{Set: true, At: &at, Seconds: 1}})
	if got := s.wantValue(key, "1").Expires; got.Before(at.Add(-time.Second)) || got.After(at.Add(time.Second)) {
		s.Errorf("the value says it expires at %v, want %v", got, at)
	}
	clock.Advance(ttl - 5*time.Second)
	s.wantValue(key, "1")
	clock.Advance(10 * time.Second)
	s.wantAbsent(key)
	for _, past := range []time.Time{clock.Now().Add(-time.Hour), time.Unix(0, 0).UTC(), {},
		time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC)} {
		s.set(state.Write{Key: key, Value: []byte("2"), TTL: state.TTL{Set: true, At: &past}})
		s.wantAbsent(key)
	}
	last := time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
	s.set(state.Write{Key: key, Value: []byte("3"), TTL: state.TTL{Set: true, At: &last}})
	s.wantValue(key, "3")
}

func expiryReplaced(s *suite) {
	clock := s.clock()
	seconds := int64(ttl / time.Second)
	cleared, never, minus, longer, shorter :=
		s.key("cleared"), s.key("never"), s.key("minus"), s.key("longer"), s.key("shorter")
	for _, key := range []string{cleared, never, minus, longer} {
		s.set(lasting(key, "1", seconds))
	}
	s.put(shorter, "1")
	s.put(cleared, "2")
	s.set(lasting(never, "2", 0))
	s.set(lasting(minus, "2", -1))
	s.set(lasting(longer, "2", 10*seconds))
	s.set(lasting(shorter, "2", seconds))
	if got := s.get(cleared).Expires; !got.IsZero() {
		s.Errorf("a value written without a TTL says it expires at %v", got)
	}
	clock.Advance(2 * ttl)
	for _, key := range []string{cleared, never, minus, longer} {
		s.wantValue(key, "2")
	}
	s.wantAbsent(shorter)
	clock.Advance(20 * ttl)
	s.wantAbsent(longer)
	s.wantValue(never, "2")
}

func expiryEverywhere(s *suite) {
	clock := s.clock()
	gone, stays := s.key("gone"), s.key("stays")
	s.set(lasting(gone, "1", 1), write(stays, "1"))
	clock.Advance(5 * time.Second)
	s.wantAbsent(gone)
	if b := state.AbilitiesOf(s.store).BulkGetter; b != nil {
		items, err := b.BulkGet(s.ctx(), state.BulkGetRequest{Keys: []string{gone, stays}, ReadOptions: strong()})
		s.must(err)
		if len(items) != 2 || items[0].Found() || !items[1].Found() {
			s.Errorf("BulkGet of an expired and a living key gave %+v", items)
		}
	}
	if l := state.AbilitiesOf(s.store).Lister; l != nil {
		page, err := l.List(s.ctx(), state.ListRequest{Prefix: s.key(""), ReadOptions: strong()})
		s.must(err)
		if len(page.Items) != 1 || page.Items[0].Key != stays {
			s.Errorf("List shows %+v, want only %q", page.Items, stays)
		}
	}
}

func expiryConditions(s *suite) {
	clock := s.clock()
	key := s.key("k")
	expire := func() string {
		s.Helper()
		etag := s.set(lasting(key, "1", 1))[0]
		clock.Advance(5 * time.Second)
		return etag
	}
	old := expire()
	_, err := s.trySet(state.Write{Key: key, Value: []byte("2"), ETag: old})
	s.wantConflict(err, key)
	s.wantConflict(s.tryDelete(state.DeleteRequest{Key: key, ETag: old}), key)
	s.wantAbsent(key)
	s.delete(state.DeleteRequest{Key: key})
	old = expire()
	created := s.set(state.Write{Key: key, Value: []byte("3"), Concurrency: state.FirstWrite})[0]
	if item := s.wantValue(key, "3"); created == old || item.ETag != created || !item.Expires.IsZero() {
		s.Errorf("created over an expired key: ETag %q after %q, expires %v", item.ETag, old, item.Expires)
	}
}

func expiryTransact(s *suite) {
	clock := s.clock()
	a, b := s.key("a"), s.key("b")
	s.transact(state.Operation{Write: lasting(a, "1", 1)}, upsert(b, "1"))
	clock.Advance(5 * time.Second)
	s.wantAbsent(a)
	s.wantValue(b, "1")
	s.transact(state.Operation{Write: state.Write{Key: a, Value: []byte("2"), Concurrency: state.FirstWrite}},
		remove(b))
	s.wantValue(a, "2")
	s.wantAbsent(b)
}
