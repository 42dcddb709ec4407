package mongodb_test

import (
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

func TestStore_ReadsDataOfDapr(t *testing.T) {
	s := start(t)
	store := opened(t, s)
	at := time.Now().Add(time.Hour).UTC().Truncate(time.Millisecond)
	for want, value := range map[string]any{
		`{"n":1}`: `{"n":1}`, // saved by Dapr over gRPC
		`{"b":1,"a":[true,null,1.5,"x"]}`: bson.D{{Key: "b", Value: int32(1)},
			{Key: "a", Value: bson.A{true, nil, 1.5, "x"}}}, // saved by Dapr over HTTP
		`[1,{"n":2}]`:            bson.A{1, bson.D{{Key: "n", Value: int64(2)}}},
		"17":                     17.0,
		"false":                  false,
		"null":                   nil,
		`"2030-01-02T03:04:05Z"`: bson.NewDateTimeFromTime(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)),
		`"0123456789abcdef01234567"`: bson.ObjectID{0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0x01, 0x23, 0x45,
			0x67},
	} {
		s.put(bson.D{{Key: "_id", Value: "shop||k"}, {Key: "value", Value: value}, {Key: "_etag", Value: "e"},
			{Key: "_ttl", Value: bson.NewDateTimeFromTime(at)}})
		item := statetest.WantValue(t, store, "shop||k", want)
		if item.ETag != "e" || item.ContentType != "" || !item.Expires.Equal(at) {
			t.Errorf("the item is %+v", item)
		}
	}
	s.put(bson.D{{Key: "_id", Value: "shop||bytes"}, {Key: "value", Value: "\x00\xff"}, {Key: "_etag", Value: "e"}})
	if item := statetest.WantValue(t, store, "shop||bytes", "\x00\xff"); item.ContentType != state.OctetStream {
		t.Errorf("bytes that Dapr wrote have content type %q", item.ContentType)
	}
	s.put(bson.D{{Key: "_id", Value: "shop||k"}, {Key: "value", Value: bson.Regex{Pattern: "x"}}, {Key: "_etag",
		Value: "e"}})
	_, err := statetest.Get(t.Context(), store, "shop||k")
	statetest.WantFault(t, err, fault.Corrupt, "no form in JSON")
	items, err := store.BulkGet(t.Context(), state.BulkGetRequest{Keys: []string{"shop||k", "shop||bytes"}})
	if err != nil || items[0].Err == nil || items[0].Found() || items[1].Err != nil {
		t.Errorf("BulkGet = %+v, %v", items, err)
	}
	s.put(bson.D{{Key: "_id", Value: "shop||k"}, {Key: "value", Value: "1"}, {Key: "_etag", Value: 1.5}})
	_, err = statetest.Get(t.Context(), store, "shop||k")
	statetest.WantFault(t, err, fault.Corrupt, "not one of a state store")
	items, err = store.BulkGet(t.Context(), state.BulkGetRequest{Keys: []string{"shop||k", "shop||bytes"}})
	if err != nil || items[0].Err == nil || items[0].Found() || items[1].Err != nil {
		t.Errorf("BulkGet = %+v, %v", items, err)
	}
	_, err = store.BulkGet(t.Context(), state.BulkGetRequest{Keys: []string{"shop||bytes"}, MaxBytes: 1})
	statetest.WantFault(t, err, fault.TooLarge, "1 bytes")
}

// A listing reads no values, which may be large. So a value that cannot be decoded does not fail the listing.
func TestStore_ListsWithoutValues(t *testing.T) {
	s := start(t)
	store := opened(t, s)
	for key, doc := range map[string]bson.D{
		"a||json":  {{Key: "value", Value: "1"}, {Key: "_etag", Value: "e"}},
		"a||regex": {{Key: "value", Value: bson.Regex{Pattern: "x"}}, {Key: "_etag", Value: "e"}},
		"a||wrong": {{Key: "value", Value: "1"}, {Key: "_etag", Value: 1.5}},
	} {
		s.put(append(bson.D{{Key: "_id", Value: key}}, doc...))
	}
	page, err := store.List(t.Context(), state.ListRequest{Prefix: "a||"})
	testutil.Must(t, err)
	if len(page.Items) != 3 {
		t.Fatalf("List = %+v", page)
	}
	for _, item := range page.Items {
		wrong := item.Key == "a||wrong"
		if item.Value != nil || (item.Err != nil) != wrong || (item.ETag != "e") != wrong {
			t.Errorf("the listing has %+v", item)
		}
	}
}

// put stores a document in the fake server without a request.
func (s *server) put(doc bson.D) {
	s.Lock()
	defer s.Unlock()
	s.docs[doc[0].Value.(string)] = doc
}

// transcript returns the commands that the server has received, without the parts that differ in each run.
func (s *server) transcript(t *testing.T) string {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var out strings.Builder
	for _, c := range s.commands {
		var short bson.D
		for _, e := range c {
			switch e.Key {
			case "lsid", "$db", "txnNumber", "maxTimeMS", "$clusterTime", "$readPreference", "commitTransaction":
			default:
				short = append(short, e)
			}
		}
		text, err := bson.MarshalExtJSON(short, false, false)
		testutil.Must(t, err)
		out.WriteString(string(text) + "\n")
	}
	return out.String()
}

func TestStore_SendsCommands(t *testing.T) {
	s := start(t)
	store := opened(t, s)
	ctx := t.Context()
	read := func(level state.Consistency) state.ReadOptions { return state.ReadOptions{Consistency: level} }
	for _, level := range []state.Consistency{state.Eventual, state.Strong} {
		_, err := store.Set(ctx, state.SetRequest{Consistency: level, Items: []state.Write{
			{Key: "a||k", Value: []byte("$1"), TTL: state.TTL{Set: true, Seconds: 5}}}})
		testutil.Must(t, err)
		_, err = store.Get(ctx, state.GetRequest{Key: "a||k", ReadOptions: read(level)})
		testutil.Must(t, err)
	}
	_, err := store.List(ctx, state.ListRequest{Prefix: "a||", After: "a||b", Limit: 2,
		ReadOptions: read(state.Strong)})
	testutil.Must(t, err)
	_, err = store.Transact(ctx, state.TransactRequest{Operations: []state.Operation{
		{Kind: state.Remove, Write: state.Write{Key: "a||k"}}, {Kind: state.Remove, Write: state.Write{Key: "a||j"}}}})
	testutil.Must(t, err)
	got := s.transcript(t)
	alive := `"$or":[{"_ttl":null},{"$expr":{"$gt":["$_ttl","$$NOW"]}}]`
	for _, want := range []string{
		`"indexes":[{"key":{"_ttl":1},"expireAfterSeconds":0,"name":"_ttl_1"}]`,
		`"writeConcern":{"w":1,"j":true}`,
		`"writeConcern":{"w":"majority","j":true}`,
		`"value":{"$literal":"$1"}`,
		`"_ttl":{"$add":["$$NOW",5000]}`,
		`"filter":{"_id":"a||k",` + alive + `},"limit":1,"readConcern":{"level":"local"}}`,
		`"filter":{"_id":"a||k",` + alive + `},"limit":1,"readConcern":{"level":"linearizable"}}`,
		`"filter":{"_id":{"$gte":"a||","$gt":"a||b","$lt":"a|}"},` + alive +
			`},"limit":3,"projection":{"_etag":1,"_ttl":1}`,
		`"startTransaction":true`, `"readConcern":{"level":"snapshot"}`,
		`"deletes":[{"q":{"_id":"a||j"},"limit":1},{"q":{"_id":"a||k"},"limit":1}]`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no command contains %s", want)
		}
	}
	if t.Failed() {
		t.Log(got)
	}
}
