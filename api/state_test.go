package api_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

func item(key, value string, c state.Consistency) api.Item {
	return api.Item{Key: key, Value: []byte(value), JSON: true, Consistency: c}
}

func upsert(key string, c state.Consistency) api.Operation {
	return api.Operation{Name: api.OperationUpsert, Item: item(key, "1", c)}
}

func TestState_StrictestConsistencyReachesStore(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		byStore  state.Consistency
		given    []state.Consistency
		expected state.Consistency
	}{
		{"unset, eventual store", state.Eventual, []state.Consistency{0, 0}, state.Eventual},
		{"unset, strong store", state.Strong, []state.Consistency{0, 0}, state.Strong},
		{"unset, store without a default", state.DefaultConsistency, []state.Consistency{0}, state.Eventual},
		{"one strong", state.Eventual, []state.Consistency{state.Eventual, state.Strong, 0}, state.Strong},
		{"all eventual, strong store", state.Strong, []state.Consistency{state.Eventual, state.Eventual},
			state.Eventual},
		{"one says nothing, strong store", state.Strong, []state.Consistency{state.Eventual, 0}, state.Strong},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s, store := newSpied(t, api.Limits{}, func(i *state.Instance) { i.DefaultConsistency = test.byStore })
			save := api.SaveRequest{Store: "orders"}
			transact := api.TransactRequest{Store: "orders"}
			for _, c := range test.given {
				save.Items = append(save.Items, item("a", "1", c))
				transact.Operations = append(transact.Operations, upsert("a", c))
			}
			if _, err := s.Save(t.Context(), save); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Transact(t.Context(), transact); err != nil {
				t.Fatal(err)
			}
			if store.set.Consistency != test.expected || store.transact.Consistency != test.expected {
				t.Errorf("save passed %v and transaction %v, want %v", store.set.Consistency,
					store.transact.Consistency, test.expected)
			}
		})
	}
}

func TestState_OptionsReachStore(t *testing.T) {
	t.Parallel()
	s, store := newSpied(t, api.Limits{}, nil)
	ctx := t.Context()
	read := api.ReadOptions{Consistency: state.Strong, Session: "s1",
		Metadata: map[string]string{"maxStaleness": "2s", "x": "y"}}
	write := api.WriteOptions{Session: "s2", RequestID: "r1", Metadata: map[string]string{"x": "z"}}
	deleted := write
	deleted.RequestID = "r3"
	calls := map[string]func() error{
		"get": func() error {
			_, err := s.Get(ctx, api.GetRequest{Store: "orders", Key: "k", ReadOptions: read})
			return err
		},
		"bulk": func() error {
			_, err := s.BulkGet(ctx, api.BulkGetRequest{Store: "orders", Keys: []string{"k"}, Parallelism: 3,
				ReadOptions: read})
			return err
		},
		"list": func() error {
			_, err := s.List(ctx, api.ListRequest{Store: "orders", Prefix: "k", ReadOptions: read})
			return err
		},
		"delete": func() error {
			_, err := s.Delete(ctx, api.DeleteRequest{Store: "orders", Key: "k", Concurrency: state.FirstWrite,
				WriteOptions: deleted})
			return err
		},
		"save": func() error {
			_, err := s.Save(ctx, api.SaveRequest{Store: "orders", Items: []api.Item{item("k", "1", 0)},
				WriteOptions: write})
			return err
		},
		"transact": func() error {
			_, err := s.Transact(ctx, api.TransactRequest{
				Store: "orders", Operations: []api.Operation{upsert("k", 0)},
				StoreMetadata: map[string]string{"whole": "1"},
				WriteOptions:  api.WriteOptions{Session: "s2", RequestID: "r2"},
			})
			return err
		},
	}
	for name, call := range calls {
		if err := call(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	options := state.ReadOptions{Consistency: state.Strong, Session: "s1", MaxStaleness: 2 * time.Second,
		Metadata: read.Metadata}
	check := func(what string, got, want any) {
		t.Helper()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	check("get", store.get, state.GetRequest{Key: "shop||k", ReadOptions: options})
	check("bulk", store.bulk, state.BulkGetRequest{Keys: []string{"shop||k"}, Parallelism: 3, ReadOptions: options})
	check("list", store.list, state.ListRequest{Prefix: "shop||k", Limit: api.DefaultPage, ReadOptions: options})
	check("delete", store.delete, state.DeleteRequest{
		Key: "shop||k", Concurrency: state.FirstWrite, Consistency: state.Eventual, Session: "s2", RequestID: "r3",
		Metadata: write.Metadata,
	})
	check("save", store.set, state.SetRequest{
		Items:       []state.Write{{Key: "shop||k", Value: []byte("1"), Metadata: write.Metadata}},
		Consistency: state.Eventual, Session: "s2", RequestID: "r1",
	})
	check("transact", store.transact, state.TransactRequest{
		Operations:  []state.Operation{{Write: state.Write{Key: "shop||k", Value: []byte("1")}}},
		Consistency: state.Eventual, Session: "s2", RequestID: "r2", Metadata: map[string]string{"whole": "1"},
	})
}

func TestState_RequestMetadataOverridesItemMetadata(t *testing.T) {
	t.Parallel()
	s, store := newSpied(t, api.Limits{}, nil)
	own := map[string]string{"ttlInSeconds": "5", "own": "1"}
	over := map[string]string{"ttlInSeconds": "9", "request": "1"}
	first, second := item("a", "1", 0), item("b", "1", 0)
	first.Metadata = own
	_, err := s.Save(t.Context(), api.SaveRequest{
		Store: "orders", Items: []api.Item{first, second}, WriteOptions: api.WriteOptions{Metadata: over},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"ttlInSeconds": "9", "own": "1", "request": "1"}
	if diff := cmp.Diff(want, store.set.Items[0].Metadata); diff != "" {
		t.Errorf("metadata of the first item (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(over, store.set.Items[1].Metadata); diff != "" {
		t.Errorf("metadata of the second item (-want +got):\n%s", diff)
	}
	for i := range store.set.Items {
		if got := store.set.Items[i].TTL; got != (state.TTL{Set: true, Seconds: 9}) {
			t.Errorf("life time of item %d: %+v", i, got)
		}
	}
	if len(own) != 2 || len(over) != 2 {
		t.Errorf("the maps of the request were changed: %v, %v", own, over)
	}
}

func TestLimits_ErrorsNameLimitAndStoreIsNotCalled(t *testing.T) {
	t.Parallel()
	limits := api.Limits{BulkKeys: 2, Operations: 2, PageSize: 2, RequestIDSize: 3}
	s, store := newSpied(t, limits, nil)
	ctx := t.Context()
	long := api.WriteOptions{RequestID: "four"}
	tests := map[string]struct {
		call func() error
		code string
		says string
	}{
		"bulk": {func() error {
			_, err := s.BulkGet(ctx, api.BulkGetRequest{Store: "orders", Keys: []string{"a", "b", "c"}})
			return err
		}, api.CodeMalformed, "the limit is 2"},
		"save": {func() error {
			_, err := s.Save(ctx, api.SaveRequest{Store: "orders", Items: make([]api.Item, 3)})
			return err
		}, api.CodeMalformed, "the limit is 2"},
		"transaction": {func() error {
			_, err := s.Transact(ctx, api.TransactRequest{Store: "orders", Operations: make([]api.Operation, 3)})
			return err
		}, api.CodeTooManyOperations, "the limit is 2"},
		"actor transaction": {func() error {
			_, err := s.ActorTransact(ctx, api.ActorTransactRequest{Actor: api.Actor{Type: "t", ID: "i"},
				Operations: make([]api.Operation, 3)})
			return err
		}, api.CodeTooManyOperations, "the limit is 2"},
		"list": {func() error {
			_, err := s.List(ctx, api.ListRequest{Store: "orders", Limit: 3})
			return err
		}, api.CodeMalformed, "the limit is 2"},
		"list below zero": {func() error {
			_, err := s.List(ctx, api.ListRequest{Store: "orders", Limit: -1})
			return err
		}, api.CodeMalformed, "from 1 to 2"},
		"request id of a save": {func() error {
			_, err := s.Save(ctx, api.SaveRequest{Store: "orders", Items: []api.Item{item("a", "1", 0)},
				WriteOptions: long})
			return err
		}, api.CodeMalformed, "the limit is 3"},
		"request id that is not text": {func() error {
			_, err := s.Delete(ctx, api.DeleteRequest{Store: "orders", Key: "a",
				WriteOptions: api.WriteOptions{RequestID: "\xff"}})
			return err
		}, api.CodeMalformed, "not valid UTF-8"},
		"request id of a delete": {func() error {
			_, err := s.Delete(ctx, api.DeleteRequest{Store: "orders", Key: "a", WriteOptions: long})
			return err
		}, api.CodeMalformed, "the limit is 3"},
		"request id of a transaction": {func() error {
			_, err := s.Transact(ctx, api.TransactRequest{Store: "orders",
				Operations: []api.Operation{upsert("a", 0)}, WriteOptions: long})
			return err
		}, api.CodeMalformed, "the limit is 3"},
	}
	for name, test := range tests {
		err := test.call()
		if code := codeOf(t, err); code != test.code || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v, want %s and %q", name, err, test.code, test.says)
		}
	}
	if store.calls != 0 {
		t.Errorf("%d calls reached the store", store.calls)
	}
}

// bare is a store that returns the bare error of its context.
type bare struct{ state.Store }

func (bare) Set(ctx context.Context, _ state.SetRequest) (state.Written, error) {
	return state.Written{}, ctx.Err()
}

func (bare) Get(ctx context.Context, _ state.GetRequest) (state.Item, error) {
	return state.Item{}, ctx.Err()
}

func TestWrite_BareContextErrorIsIndeterminate(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := service(bare{}, api.Limits{}, nil)
	_, err := s.Save(ctx, api.SaveRequest{Store: "orders", Items: []api.Item{item("a", "1", 0)}})
	if e := api.AsError(err); e.Kind != api.Indeterminate || e.Details.Reason != api.ReasonIndeterminate {
		t.Errorf("save: %+v", e)
	}
	_, err = s.Get(ctx, api.GetRequest{Store: "orders", Key: "a"})
	if e := api.AsError(err); e.Kind != api.Timeout || strings.Contains(e.Message, "applied") {
		t.Errorf("get: %+v", e)
	}
}

func TestError_PrivateBecomesInternalAndKeepsCause(t *testing.T) {
	t.Parallel()
	cause := fault.New(fault.Corrupt, "test", "broken")
	e := api.AsError(cause)
	if e.Code != api.CodeInternal || e.Unwrap() != cause { //nolint:errorlint // the very value is meant
		t.Errorf("%+v", e)
	}
}

func TestKeys_NamespaceAndLiteralPrefixesAreSeparate(t *testing.T) {
	t.Parallel()
	for text, stored := range map[string]string{
		"": "shop||k", "namespace": "prod.shop||k", "name": "orders||k", "none": "k", "Team": "team||k",
	} {
		prefix, err := state.ParseKeyPrefix(text)
		if err != nil {
			t.Fatal(err)
		}
		s, store := newSpied(t, api.Limits{}, func(i *state.Instance) { i.KeyPrefix, i.Namespace = prefix, "prod" })
		got, err := s.Get(t.Context(), api.GetRequest{Store: "orders", Key: "k"})
		if err != nil || store.get.Key != stored || got.Key != "k" {
			t.Errorf("keyPrefix %q: stored key %q, key in the answer %q, %v; want %q", text, store.get.Key, got.Key,
				err, stored)
		}
	}
}
