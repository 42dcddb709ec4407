package redis_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	mini "github.com/alicebob/miniredis/v2/server"
	goredis "github.com/redis/go-redis/v9"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/redis"
	"github.com/quorate/quorate/component/state/redis/redistest"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// A listing of many keys does not scan the database for each page. It still omits keys that are deleted between two
// pages.
func TestStore_ListScansOnceForManyPages(t *testing.T) {
	s := redistest.Start(t)
	store := opened(t, "redisHost", s.Address)
	const keys = 2500
	_, err := s.Admin.Pipelined(t.Context(), func(p goredis.Pipeliner) error {
		for i := range keys {
			p.HSet(t.Context(), fmt.Sprintf("a||k%04d", i), "data", "1", "version", "1")
		}
		return nil
	})
	testutil.Must(t, err)
	s.Do("config", "resetstat")
	next := func(after string) state.Page {
		t.Helper()
		page, err := store.List(t.Context(), state.ListRequest{Prefix: "a||", After: after, Limit: 100})
		testutil.Must(t, err)
		return page
	}
	scans := func() int {
		t.Helper()
		text, err := s.Admin.Info(t.Context(), "commandstats").Result()
		testutil.Must(t, err)
		var n int
		_, after, _ := strings.Cut(text, "cmdstat_scan:calls=")
		_, _ = fmt.Sscanf(after, "%d", &n)
		return n
	}
	first := next("")
	once := scans()
	s.Do("del", "a||k0150")
	s.Do("hset", "a||k0120x", "data", "1", "version", "1")
	seen, after := len(first.Items), first.Items[len(first.Items)-1].Key
	for more := first.More; more; {
		page := next(after)
		for _, item := range page.Items {
			if item.Key <= after || item.Key == "a||k0150" {
				t.Fatalf("%s follows %s", item.Key, after)
			}
			after = item.Key
		}
		seen, more = seen+len(page.Items), page.More
	}
	if seen != keys-1 || scans() != once {
		t.Errorf("%d keys with %d scans; want %d keys with %d scans", seen, scans(), keys-1, once)
	}
	if page := next("a||k0119"); len(page.Items) != 99 || page.Items[0].Key != "a||k0120" {
		t.Errorf("the page after k0119 begins with %+v", page.Items[:1])
	}
	s.Do("hset", "a||a", "data", "1", "version", "1")
	if page := next(""); page.Items[0].Key != "a||a" || page.Items[0].Value != nil || page.Items[0].ETag != "1" {
		t.Errorf("a new listing begins with %+v", page.Items[0])
	}
	if page := next("a||k0120"); page.Items[0].Key != "a||k0120x" {
		t.Errorf("the new listing continues with %s", page.Items[0].Key)
	}
}

// Dapr stores a value with the content type application/json as a RedisJSON document.
func TestStore_ReadsDocumentsOfRedisJSON(t *testing.T) {
	m := miniredis.RunT(t)
	documents := map[string]string{
		"shop||doc":     `{"data":{"b":1, "a":12345678901234567890},"version":4}`,
		"shop||null":    `{"data":null,"version":1}`,
		"shop||foreign": `{"x":1}`, "shop||list": `[1]`,
	}
	for k := range documents {
		m.HSet(k, "x", "y") // so that SCAN finds it
	}
	m.Server().SetPreHook(func(p *mini.Peer, command string, args ...string) bool {
		switch strings.ToUpper(command) {
		case "INFO": // miniredis does not have this section
			p.WriteBulk("role:master\r\nconnected_slaves:0\r\n")
		case "HMGET", "HGET":
			p.WriteError("WRONGTYPE Operation against a key holding the wrong kind of value")
		case "JSON.GET":
			p.WriteBulk(documents[args[0]])
		default:
			return false
		}
		return true
	})
	store := opened(t, "redisHost", m.Addr())
	item := statetest.WantValue(t, store, "shop||doc", `{"b":1, "a":12345678901234567890}`)
	if item.ETag != "4" || item.ContentType != "" {
		t.Errorf("%+v", item)
	}
	statetest.WantValue(t, store, "shop||null", "null")
	for _, key := range []string{"shop||foreign", "shop||list"} {
		_, err := statetest.Get(t.Context(), store, key)
		statetest.WantFault(t, err, fault.Invalid, "neither a hash nor a document")
	}
	page, err := store.List(t.Context(), state.ListRequest{Prefix: "shop||"})
	if err != nil || len(page.Items) != 2 || page.Items[0].Key != "shop||doc" {
		t.Errorf("List = %+v, %v", page, err)
	}
}

func FuzzDocument(f *testing.F) {
	f.Add([]byte(`{"data":{"a":1},"version":1}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if data, version := redis.Document(text); version != "" && !json.Valid(data) {
			t.Errorf("%q gave %q", text, data)
		}
	})
}
