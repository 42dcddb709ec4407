package statetest

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"

	"github.com/quorate/quorate/component/state"
)

func readCases() []testCase {
	return []testCase{
		{"AnAbsentKeyIsNotAnError", absentKey},
		{"ValuesAreKeptByteForByte", exactBytes},
		{"ANullValueIsAValue", nullValue},
		{"TheContentTypeIsKeptWithTheValue", contentType},
		{"LargeValuesAreKept", largeValue},
		{"KeysAreKeptApart", nastyKeys},
		{"EveryConsistencyLevelIsServed", everyLevel},
		{"AnswersSayWhatTheyAreWorth", proofs},
		{"ASessionIsAcceptedByLaterCalls", sessions},
	}
}

func absentKey(s *suite) {
	for _, level := range levels() {
		item, err := s.store.Get(s.ctx(),
			state.GetRequest{Key: s.key("absent"), ReadOptions: state.ReadOptions{Consistency: level}})
		if err != nil || item.Found() || len(item.Value) != 0 {
			s.Errorf("Get of an absent key at level %q = %+v, %v; want no item and no error", level, item, err)
		}
	}
}

func exactBytes(s *suite) {
	for name, value := range map[string]string{
		"empty":          "",
		"number":         "12345678901234567890.1234567890e-7",
		"object":         "{\"z\": 1,\n \"a\" :\t2, \"a\":3}",
		"escapes":        `"<&>\u00e9\/ é"`,
		"trailing space": "1 \r\n",
		"bytes":          "\x00\xff\xfe\x80separators || and | \x00",
		"not JSON":       "][",
	} {
		key := s.key(name)
		s.put(key, value)
		if s.options.NormalisedJSON && json.Valid([]byte(value)) {
			s.wantSameJSON(s.get(key).Value, value)
			continue
		}
		s.wantValue(key, value)
	}
}

// wantSameJSON checks that two JSON texts mean the same.
func (s *suite) wantSameJSON(got []byte, want string) {
	s.Helper()
	values := make([]any, 2)
	for i, text := range []string{string(got), want} {
		d := json.NewDecoder(strings.NewReader(text))
		if err := d.Decode(&values[i]); err != nil {
			s.Fatalf("%q is not JSON: %v", text, err)
		}
	}
	if !reflect.DeepEqual(values[0], values[1]) {
		s.Errorf("got %s, which does not mean %s", got, want)
	}
}

func nullValue(s *suite) {
	key := s.key("null")
	etag := s.put(key, "null")
	if item := s.wantValue(key, "null"); item.ETag != etag {
		s.Errorf("ETag of the read is %q, of the write %q", item.ETag, etag)
	}
}

func contentType(s *suite) {
	key := s.key("typed")
	value := "\x00\x01\x02\xff"
	s.set(state.Write{Key: key, Value: []byte(value), ContentType: state.OctetStream})
	if item := s.wantValue(key, value); item.ContentType != state.OctetStream {
		s.Errorf("content type is %q, want %q", item.ContentType, state.OctetStream)
	}
	s.put(key, "1")
	if item := s.wantValue(key, "1"); item.ContentType != "" {
		s.Errorf("content type after a write without one is %q, want none", item.ContentType)
	}
}

func largeValue(s *suite) {
	source := rand.NewChaCha8([32]byte{1})
	for _, size := range []int{1, 1 << 10, 1 << 16, s.options.LargeValue} {
		value := make([]byte, size)
		source.Read(value) //nolint:errcheck // it never fails
		key := s.key("large")
		s.set(state.Write{Key: key, Value: bytes.Clone(value)})
		if item := s.get(key); !bytes.Equal(item.Value, value) {
			s.Fatalf("a value of %d bytes came back with %d bytes or changed", size, len(item.Value))
		}
	}
}

func nastyNames() []string {
	return []string{
		"a", "A", "a ", " a", "a/b", "a//b", "a/b/", "a%2Fb", "a+b", "a?b=c#d", "..", ".", `a"b`, `a\b`, "a|b", "|",
		"a'b;--",
		"a\x00", "a\x00b", "a\nb", "a\tb", "{}", "[0]", "*", "_", "-",
		"é", "e\u0301", "日本語", "🙂", "\u202eabc", "\U0010ffff",
		strings.Repeat("x", state.MaxKeySize), strings.Repeat("x", state.MaxKeySize-1),
	}
}

func (s *suite) nastyNames() []string {
	names := nastyNames()
	if s.options.TextKeys {
		names = slices.DeleteFunc(names, func(name string) bool { return strings.Contains(name, "\x00") })
	}
	if refused := s.options.Unstorable; refused != nil {
		names = slices.DeleteFunc(names, func(name string) bool { return refused(s.key(name)) })
	}
	return names
}

func nastyKeys(s *suite) {
	for _, name := range s.nastyNames() {
		s.put(s.key(name), "value of "+name)
	}
	for _, name := range s.nastyNames() {
		s.wantValue(s.key(name), "value of "+name)
	}
	for i, name := range s.nastyNames() {
		if i%2 == 0 {
			s.delete(state.DeleteRequest{Key: s.key(name)})
		}
	}
	for i, name := range s.nastyNames() {
		if i%2 == 0 {
			s.wantAbsent(s.key(name))
			continue
		}
		s.wantValue(s.key(name), "value of "+name)
	}
}

func levels() []state.Consistency {
	return []state.Consistency{state.DefaultConsistency, state.Eventual, state.Strong}
}

func everyLevel(s *suite) {
	for _, level := range levels() {
		key := s.key("level-" + level.String())
		options := state.ReadOptions{Consistency: level}
		set := state.SetRequest{Items: []state.Write{write(key, "1")}, Consistency: level}
		if _, err := s.store.Set(s.ctx(), set); err != nil {
			s.Fatalf("Set at level %q: %v", level, err)
		}
		if _, err := s.store.Get(s.ctx(), state.GetRequest{Key: key, ReadOptions: options}); err != nil {
			s.Fatalf("Get at level %q: %v", level, err)
		}
		if _, err := s.store.Delete(s.ctx(), state.DeleteRequest{Key: key, Consistency: level}); err != nil {
			s.Fatalf("Delete at level %q: %v", level, err)
		}
		if tx := state.AbilitiesOf(s.store).Transactor; tx != nil {
			r := state.TransactRequest{Operations: []state.Operation{{Write: write(key, "2")}}, Consistency: level}
			if _, err := tx.Transact(s.ctx(), r); err != nil {
				s.Fatalf("Transact at level %q: %v", level, err)
			}
			s.wantValue(key, "2")
		}
	}
}

// promised returns the lowest level that an answer may have if its request is strong. The level depends on the method
// that was called, such as BulkGet.
func (o Options) promised(call string) state.Level {
	switch call {
	case "BulkGet":
		return o.BulkLevel
	case "List":
		return o.ListLevel
	}
	return o.Level
}

// weaker reports whether one level promises less than another.
func weaker(one, other state.Level) bool {
	order := []state.Level{state.Stale, state.Bounded, state.SessionLevel, state.Linearizable}
	return slices.Index(order, one) < slices.Index(order, other)
}

func proofs(s *suite) {
	key := s.key("proved")
	worth := func(what string, p state.Proof, level state.Consistency) {
		s.Helper()
		switch {
		case p.Level == "":
			s.Errorf("%s at level %q has no level", what, level)
		case level == state.Strong && weaker(p.Level, s.options.promised(what)):
			s.Errorf("%s at level %q is only %q", what, level, p.Level)
		}
	}
	for _, level := range levels() {
		w, err := s.store.Set(s.ctx(), state.SetRequest{Items: []state.Write{write(key, "1")}, Consistency: level})
		s.must(err)
		worth("Set", w.Proof, level)
		options := state.ReadOptions{Consistency: level}
		item, err := s.store.Get(s.ctx(), state.GetRequest{Key: key, ReadOptions: options})
		s.must(err)
		worth("Get", item.Proof, level)
		w, err = s.store.Delete(s.ctx(), state.DeleteRequest{Key: key, Consistency: level})
		s.must(err)
		worth("Delete", w.Proof, level)
		item, err = s.store.Get(s.ctx(), state.GetRequest{Key: s.key("never"), ReadOptions: options})
		s.must(err)
		worth("Get of an absent key", item.Proof, level)
		s.optionalProofs(worth, key, level)
	}
}

func (s *suite) optionalProofs(
	worth func(string, state.Proof, state.Consistency), key string, level state.Consistency,
) {
	s.Helper()
	options := state.ReadOptions{Consistency: level}
	if tx := state.AbilitiesOf(s.store).Transactor; tx != nil {
		w, err := tx.Transact(s.ctx(), state.TransactRequest{
			Operations: []state.Operation{{Write: write(key, "1")}}, Consistency: level})
		s.must(err)
		worth("Transact", w.Proof, level)
	}
	if b := state.AbilitiesOf(s.store).BulkGetter; b != nil {
		items, err := b.BulkGet(s.ctx(), state.BulkGetRequest{
			Keys: []string{key, s.key("never")}, ReadOptions: options})
		s.must(err)
		for _, item := range items {
			worth("BulkGet", item.Proof, level)
		}
	}
	if l := state.AbilitiesOf(s.store).Lister; l != nil {
		page, err := l.List(s.ctx(), state.ListRequest{Prefix: s.key(""), ReadOptions: options})
		s.must(err)
		worth("List", page.Proof, level)
	}
}

// sessions tests session tokens. An eventual read with the token of a write must return the written value, unless the
// level of the answer is state.Stale. A delete must accept the token that a read has returned.
func sessions(s *suite) {
	key := s.key("session")
	for _, value := range []string{"1", "2", "3"} {
		w, err := s.trySet(write(key, value))
		s.must(err)
		if w.Session == "" {
			s.Skip("the store has no sessions")
		}
		item, err := s.store.Get(s.ctx(), state.GetRequest{Key: key,
			ReadOptions: state.ReadOptions{Consistency: state.Eventual, Session: w.Session}})
		s.must(err)
		if string(item.Value) != value && item.Level != state.Stale {
			s.Errorf("an eventual read in the session of the write gave %q at level %q, want %q",
				item.Value, item.Level, value)
		}
		if err := s.tryDelete(state.DeleteRequest{Key: s.key("other"), Session: item.Session}); err != nil {
			s.Errorf("Delete with the session of a read: %v", err)
		}
	}
}

func (s *suite) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}
