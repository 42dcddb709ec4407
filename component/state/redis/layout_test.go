package redis_test

import (
	"context"
	"fmt"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/redis"
	"github.com/quorate/quorate/component/state/redis/redistest"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// dapr writes a value like Dapr's component: it sets the field data of a hash, and increments the field version.
func dapr(s *redistest.Server, key, value string) {
	s.T.Helper()
	s.Do("hset", key, "data", value)
	s.Do("hincrby", key, "version", 1)
}

func TestStore_ReadsAndWritesDataOfDapr(t *testing.T) {
	s := redistest.Start(t)
	store := opened(t, "redisHost", s.Address)
	ctx := t.Context()
	dapr(s, "shop||k", `{"n":1}`)
	dapr(s, "shop||k", `{"n":2}`)
	item := statetest.WantValue(t, store, "shop||k", `{"n":2}`)
	if item.ETag != "2" || item.ContentType != "" {
		t.Errorf("ETag %q, content type %q; want 2 and none", item.ETag, item.ContentType)
	}
	testutil.Must(t, statetest.Set(ctx, store, state.Write{Key: "shop||k", Value: []byte(`{"n":3}`), ETag: "2"}))
	fields, err := s.Admin.HGetAll(ctx, "shop||k").Result()
	testutil.Must(t, err)
	item = statetest.WantValue(t, store, "shop||k", `{"n":3}`)
	if fields["data"] != `{"n":3}` || fields["version"] != item.ETag || len(fields) != 2 {
		t.Errorf("the hash is %v, want data and version %s", fields, item.ETag)
	}
	dapr(s, "shop||k", `{"n":4}`)
	statetest.WantFault(t, statetest.Set(ctx, store, state.Write{Key: "shop||k", Value: []byte("5"),
		ETag: item.ETag}), fault.Conflict)
	statetest.WantValue(t, store, "shop||k", `{"n":4}`)
}

func TestStore_MarksFirstWrite(t *testing.T) {
	s := redistest.Start(t)
	store := opened(t, "redisHost", s.Address)
	testutil.Must(t, statetest.Set(t.Context(), store, state.Write{Key: "a||k", Value: []byte("1"),
		Concurrency: state.FirstWrite}))
	if got := fmt.Sprint(s.Do("hget", "a||k", "first-write")); got != "0" {
		t.Errorf("the field first-write is %q, want 0", got)
	}
}

func TestStore_ContentTypeBelongsToItsVersion(t *testing.T) {
	s := redistest.Start(t)
	store := opened(t, "redisHost", s.Address)
	bytes := state.Write{Key: "a||k", Value: []byte("12"), ContentType: state.OctetStream}
	testutil.Must(t, statetest.Set(t.Context(), store, bytes))
	if item := statetest.WantValue(t, store, "a||k", "12"); item.ContentType != state.OctetStream {
		t.Errorf("content type is %q", item.ContentType)
	}
	dapr(s, "a||k", "13")
	if item := statetest.WantValue(t, store, "a||k", "13"); item.ContentType != "" {
		t.Errorf("JSON that Dapr wrote over bytes has content type %q", item.ContentType)
	}
	dapr(s, "a||bytes", "\x00\xff")
	if item := statetest.WantValue(t, store, "a||bytes", "\x00\xff"); item.ContentType != state.OctetStream {
		t.Errorf("bytes that Dapr wrote have content type %q", item.ContentType)
	}
}

func TestStore_DefaultTTLOfDapr(t *testing.T) {
	s := redistest.Start(t)
	store := opened(t, "redisHost", s.Address, "ttlInSeconds", "100")
	testutil.Must(t, statetest.Set(t.Context(), store, statetest.Put("a||k", "1"),
		state.Write{Key: "a||never", Value: []byte("1"), TTL: state.TTL{Set: true}}))
	if item := statetest.WantValue(t, store, "a||k", "1"); item.Expires.IsZero() {
		t.Error("a value without a TTL does not expire after ttlInSeconds")
	}
	if item := statetest.WantValue(t, store, "a||never", "1"); !item.Expires.IsZero() {
		t.Errorf("a value that never expires does so at %v", item.Expires)
	}
}

func TestStore_LeavesOtherTypesAlone(t *testing.T) {
	s := redistest.Start(t)
	store := opened(t, "redisHost", s.Address)
	ctx := t.Context()
	s.Do("set", "a||text", "precious")
	s.Do("rpush", "a||list", "1")
	s.Do("hset", "a||hash", "other", "1")
	testutil.Must(t, statetest.Set(ctx, store, statetest.Put("a||k", "1")))
	_, err := statetest.Get(ctx, store, "a||list")
	statetest.WantFault(t, err, fault.Invalid, "neither a hash nor a document")
	statetest.WantFault(t, statetest.Set(ctx, store, statetest.Put("a||k", "2"), statetest.Put("a||text", "2")),
		fault.Invalid, "another Redis type")
	statetest.WantValue(t, store, "a||k", "1")
	if got := s.Do("get", "a||text"); got != "precious" {
		t.Errorf("the text is %v", got)
	}
	items, err := store.BulkGet(ctx, state.BulkGetRequest{Keys: []string{"a||list", "a||k"}})
	if err != nil || !fault.Is(items[0].Err, fault.Invalid) || string(items[1].Value) != "1" {
		t.Errorf("BulkGet = %+v, %v", items, err)
	}
	page, err := store.List(ctx, state.ListRequest{Prefix: "a||"})
	if err != nil || len(page.Items) != 1 || page.Items[0].Key != "a||k" {
		t.Errorf("List = %+v, %v", page, err)
	}
}

// Like Dapr, the store reads a key that another program wrote as a string.
func TestStore_ReadsStrings(t *testing.T) {
	s := redistest.Start(t)
	store := opened(t, "redisHost", s.Address)
	s.Do("set", "a||json", `{"n":1}`, "px", "100000")
	s.Do("set", "a||text", "\x00precious")
	item := statetest.WantValue(t, store, "a||json", `{"n":1}`)
	if item.ETag == "" || item.ContentType != "" || item.Expires.IsZero() {
		t.Errorf("%+v", item)
	}
	text := statetest.WantValue(t, store, "a||text", "\x00precious")
	if text.ContentType != state.OctetStream || !text.Expires.IsZero() || text.ETag == item.ETag {
		t.Errorf("%+v", text)
	}
	items, err := store.BulkGet(t.Context(), state.BulkGetRequest{Keys: []string{"a||none", "a||json", "a||text"}})
	if err != nil || items[0].Found() || string(items[1].Value) != `{"n":1}` || items[2].ETag != text.ETag {
		t.Errorf("BulkGet = %+v, %v", items, err)
	}
	// Other programs may keep strings in the same database.
	if page, err := store.List(t.Context(), state.ListRequest{Prefix: "a||"}); err != nil || len(page.Items) != 0 {
		t.Errorf("List = %+v, %v", page, err)
	}
	statetest.WantFault(t, statetest.Set(t.Context(), store, state.Write{Key: "a||text", Value: []byte("1"),
		ETag: text.ETag}), fault.Invalid, "another Redis type")
}

func TestStore_RefusesRequestIDs(t *testing.T) {
	store := opened(t, "redisHost", redistest.Start(t).Address)
	_, err := store.Set(t.Context(), state.SetRequest{Items: []state.Write{statetest.Put("a||k", "1")},
		RequestID: "r"})
	statetest.WantFault(t, err, fault.Invalid, "request ids", "Quorate-Request-Id")
}

func TestStore_BulkGetIsBounded(t *testing.T) {
	store := opened(t, "redisHost", redistest.Start(t).Address)
	testutil.Must(t, statetest.Set(t.Context(), store, statetest.Put("a||k", "12345")))
	_, err := store.BulkGet(t.Context(), state.BulkGetRequest{Keys: []string{"a||k", "a||k"}, MaxBytes: 9})
	statetest.WantFault(t, err, fault.TooLarge, "9 bytes")
}

func transact(ctx context.Context, s *redis.Store, writes ...state.Write) error {
	var ops []state.Operation
	for _, w := range writes {
		ops = append(ops, state.Operation{Write: w})
	}
	_, err := s.Transact(ctx, state.TransactRequest{Operations: ops})
	return err
}

func TestStore_ClusterWithoutHashTags(t *testing.T) {
	all := redistest.StartCluster(t)
	store := opened(t, "redisHost", all[0].Address, "redisType", "cluster")
	ctx := t.Context()
	several := []state.Write{statetest.Put("a||1", "1"), statetest.Put("a||2", "1"), statetest.Put("a||3", "1"),
		statetest.Put("a||4", "1")}
	statetest.WantFault(t, transact(ctx, store, several...), fault.Invalid, "several slots", "clusterHashTags")
	for _, w := range several {
		if item, err := statetest.Get(ctx, store, w.Key); err != nil || item.Found() {
			t.Errorf("a refused transaction left %+v, %v", item, err)
		}
	}
	testutil.Must(t, statetest.Set(ctx, store, several...))
	for _, w := range several {
		statetest.WantValue(t, store, w.Key, "1")
	}
	create := several
	create[0].Concurrency = state.FirstWrite
	statetest.WantFault(t, statetest.Set(ctx, store, create...), fault.Invalid, "several slots")
	testutil.Must(t, transact(ctx, store, statetest.Put("{t}a", "1"), statetest.Put("{t}b", "2")))
	statetest.WantValue(t, store, "{t}b", "2")
	page, err := store.List(ctx, state.ListRequest{Prefix: "a||"})
	if err != nil || len(page.Items) != 4 || page.Level != state.Stale {
		t.Errorf("List = %+v, %v", page, err)
	}
}

// TestStore_SlotsAreThoseOfRedis compares the slots that SlotOf returns with the slots that the server returns.
func TestStore_SlotsAreThoseOfRedis(t *testing.T) {
	all := redistest.StartCluster(t)
	c := goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: []string{all[0].Address}, Protocol: 2})
	defer c.Close()
	for _, name := range []string{"", "a", "123456789", "a||b", "{a}||b", "x{a}y{b}", "{}||b", "{a", "é||日本"} {
		want, err := c.ClusterKeySlot(t.Context(), name).Result()
		testutil.Must(t, err)
		if got := redis.SlotOf(name); int64(got) != want {
			t.Errorf("SlotOf(%q) = %d, Redis says %d", name, got, want)
		}
	}
}
