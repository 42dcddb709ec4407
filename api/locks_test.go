package api_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/apitest"
	"github.com/quorate/quorate/component/state"
)

// fenced returns an item with a lock token.
func fenced(key, token string) api.Item {
	return api.Item{Key: key, Value: []byte("1"), JSON: true, Metadata: map[string]string{api.MetadataLock: token}}
}

// quietTopics publishes nothing.
type quietTopics struct{ api.Topics }

func (quietTopics) Outbox(context.Context, *api.OutboxRequest) (api.Outbox, *api.Error) {
	return api.Outbox{}, nil
}

// A write is fenced by every token that it carries: those of the header, of the query and of each item. A token of the
// query does not replace that of an item.
func TestLocks_EveryTokenOfAWriteCounts(t *testing.T) {
	t.Parallel()
	s, store := newSpied(t, api.Limits{}, func(inst *state.Instance) { inst.Outbox = &state.Outbox{} })
	s.Fence(apitest.New(t).Locks).Publish(quietTopics{})
	options := api.WriteOptions{Locks: []string{"locks/header@1, locks/header@1"},
		Metadata: map[string]string{api.MetadataLock: "locks/query@2"}}
	items := []api.Item{fenced("a", "locks/first@3"), fenced("b", "locks/second@4")}
	projection := fenced("a", "locks/projection@6")
	projection.Metadata[api.MetadataProjection] = "true"
	operations := []api.Operation{{Name: api.OperationUpsert, Item: items[0]},
		{Name: api.OperationDelete, Item: items[1]}}
	for name, test := range map[string]struct {
		write func() (state.Written, error)
		locks *[]state.LockToken
		want  string
	}{
		"save": {func() (state.Written, error) {
			return s.Save(t.Context(), api.SaveRequest{Store: "orders", Items: items, WriteOptions: options})
		}, &store.set.Locks, "header@1 query@2 first@3 second@4"},
		"delete": {func() (state.Written, error) {
			return s.Delete(t.Context(), api.DeleteRequest{Store: "orders", Key: "a", WriteOptions: options})
		}, &store.delete.Locks, "header@1 query@2"},
		"delete of several": {func() (state.Written, error) {
			return s.DeleteAll(t.Context(), api.DeleteAllRequest{Store: "orders", Items: items, WriteOptions: options})
		}, &store.transact.Locks, "header@1 query@2 first@3 second@4"},
		"transaction": {func() (state.Written, error) {
			return s.Transact(t.Context(), api.TransactRequest{Store: "orders", WriteOptions: options,
				Operations: append(slices.Clip(operations),
					api.Operation{Name: api.OperationUpsert, Item: projection}),
				StoreMetadata: map[string]string{api.MetadataLock: "locks/whole@5"}})
		}, &store.transact.Locks, "header@1 query@2 first@3 second@4 projection@6 whole@5"},
		"actor transaction": {func() (state.Written, error) {
			return s.ActorTransact(t.Context(), api.ActorTransactRequest{Actor: api.Actor{Type: "Counter", ID: "a"},
				Operations: operations, WriteOptions: options})
		}, &store.transact.Locks, "header@1 query@2 first@3 second@4"},
	} {
		*test.locks = nil
		if _, err := test.write(); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var got []string
		for _, l := range *test.locks {
			got = append(got, l.Resource+"@"+strconv.FormatUint(l.Token, 10))
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%s is fenced by %q, want %q", name, got, test.want)
		}
	}
}

// oneByOne is a store without transactions.
type oneByOne struct{ store *spy }

func (o oneByOne) Get(ctx context.Context, r state.GetRequest) (state.Item, error) {
	return o.store.Get(ctx, r)
}
func (o oneByOne) Set(ctx context.Context, r state.SetRequest) (state.Written, error) {
	return o.store.Set(ctx, r)
}
func (o oneByOne) Delete(ctx context.Context, r state.DeleteRequest) (state.Written, error) {
	return o.store.Delete(ctx, r)
}
func (o oneByOne) Close() error { return nil }

func TestLocks_EveryTokenCountsWithoutTransactions(t *testing.T) {
	t.Parallel()
	_, store := newSpied(t, api.Limits{}, nil)
	s := service(oneByOne{store}, api.Limits{}, nil).Fence(apitest.New(t).Locks)
	_, err := s.DeleteAll(t.Context(), api.DeleteAllRequest{Store: "orders",
		Items:        []api.Item{fenced("a", "locks/first@3")},
		WriteOptions: api.WriteOptions{Metadata: map[string]string{api.MetadataLock: "locks/query@2"}}})
	if err != nil || len(store.delete.Locks) != 2 {
		t.Errorf("the delete is fenced by %v: %v", store.delete.Locks, err)
	}
}

func TestLocks_NumberOfTokensIsLimited(t *testing.T) {
	t.Parallel()
	s, _ := newSpied(t, api.Limits{}, nil)
	s.Fence(apitest.New(t).Locks)
	var items []api.Item
	for i := range api.MaxLockTokens {
		items = append(items, fenced(strconv.Itoa(i), "locks/a@"+strconv.Itoa(i+1)))
	}
	save := func(query string) error {
		_, err := s.Save(t.Context(), api.SaveRequest{Store: "orders", Items: items,
			WriteOptions: api.WriteOptions{Metadata: map[string]string{api.MetadataLock: query}}})
		return err
	}
	if err := save("locks/a@1"); err != nil {
		t.Errorf("as many tokens as allowed: %v", err)
	}
	if err := save("locks/b@1"); codeOf(t, err) != api.CodeMalformed || !strings.Contains(err.Error(), "at most 16") {
		t.Errorf("one token more: %v", err)
	}
}
