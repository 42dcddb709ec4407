package cosmosdb

import (
	"context"
	"net/http"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/data/azcosmos"

	"github.com/quorate/quorate/component/state"
)

// Get implements state.Store.
func (s *Store) Get(ctx context.Context, r state.GetRequest) (state.Item, error) {
	const op = "cosmosdb.Get"
	out := state.Item{Key: r.Key, Proof: s.proof(r.Consistency)}
	if err := s.gate.Enter(ctx, op); err != nil || unstorable(r.Key) != "" {
		return out, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var answer azcosmos.ItemResponse
	err := s.again(ctx, func() (err error) {
		answer, err = s.container.ReadItem(ctx, azcosmos.NewPartitionKeyString(partition(r.Key, r.Metadata)), r.Key,
			&azcosmos.ItemOptions{ConsistencyLevel: s.level(r.Consistency)})
		return err
	})
	if status(err) == http.StatusNotFound && !lostContainer(err) {
		return out, nil
	}
	if err != nil {
		return state.Item{}, s.failed(ctx, op, r.Key, err, reading)
	}
	item, _ := decode(answer.Value)
	if item.Err != nil {
		return state.Item{}, item.Err
	}
	item.Proof = out.Proof
	return item, nil
}

// BulkGet implements state.BulkGetter with one query over all partitions.
func (s *Store) BulkGet(ctx context.Context, r state.BulkGetRequest) ([]state.Item, error) {
	const op = "cosmosdb.BulkGet"
	if err := s.gate.Enter(ctx, op); err != nil || len(r.Keys) == 0 {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return s.query(ctx, op, "*", r)
}

// query reads the items of r.Keys and returns them in the order of the keys. fields is the field list of the SQL query,
// such as "c.id, c.ttl".
func (s *Store) query(ctx context.Context, op, fields string, r state.BulkGetRequest) ([]state.Item, error) {
	times := map[string]int64{}
	var keys []string
	for _, key := range r.Keys {
		if times[key]++; times[key] == 1 {
			keys = append(keys, key)
		}
	}
	found := map[string]state.Item{}
	size := int64(0)
	pages := s.container.NewQueryItemsPager("SELECT "+fields+" FROM c WHERE ARRAY_CONTAINS(@keys, c.id)",
		azcosmos.NewPartitionKey(), &azcosmos.QueryOptions{ConsistencyLevel: s.level(r.Consistency),
			QueryParameters: []azcosmos.QueryParameter{{Name: "@keys", Value: keys}}})
	for pages.More() {
		var page azcosmos.QueryItemsResponse
		err := s.again(ctx, func() (err error) {
			page, err = pages.NextPage(ctx)
			return err
		})
		if err != nil {
			return nil, s.failed(ctx, op, "", err, reading)
		}
		for _, raw := range page.Items {
			item, where := decode(raw)
			if where != partition(item.Key, r.Metadata) {
				continue // an item of another partition may have the same id
			}
			if size += times[item.Key] * int64(len(item.Value)); r.MaxBytes > 0 && size > r.MaxBytes {
				return nil, state.ValuesTooLarge(op, r.MaxBytes)
			}
			found[item.Key] = item
		}
	}
	out := make([]state.Item, len(r.Keys))
	for i, key := range r.Keys {
		item, ok := found[key]
		if !ok {
			item = state.Item{Key: key}
		}
		item.Proof = state.Proof{Level: state.Stale} // a query does not read a snapshot
		out[i] = item
	}
	return out, nil
}

// List implements state.Lister. The client library cannot query the items of several partitions in order. Therefore
// s.listing reads all keys and sorts them in memory.
func (s *Store) List(ctx context.Context, r state.ListRequest) (state.Page, error) {
	return s.listing.Page(ctx, r, partition("", r.Metadata))
}

// unordered implements outside.Unordered.
type unordered struct{ *Store }

// Scan implements outside.Unordered with one query over all partitions.
func (s unordered) Scan(ctx context.Context, prefix string, metadata map[string]string, found func([]string)) error {
	const op = "cosmosdb.List"
	if err := s.gate.Enter(ctx, op); err != nil {
		return err
	}
	pages := s.container.NewQueryItemsPager("SELECT c.id, c.partitionKey FROM c WHERE STARTSWITH(c.id, @prefix)",
		azcosmos.NewPartitionKey(), &azcosmos.QueryOptions{ConsistencyLevel: s.level(state.Strong),
			PageSizeHint: scanPage, QueryParameters: []azcosmos.QueryParameter{{Name: "@prefix", Value: prefix}}})
	for pages.More() {
		page, err := s.scanned(ctx, pages)
		if err != nil {
			return s.failed(ctx, op, "", err, reading)
		}
		var keys []string
		for _, raw := range page.Items {
			if item, where := decode(raw); where == partition(item.Key, metadata) {
				keys = append(keys, item.Key)
			}
		}
		found(keys)
	}
	return nil
}

// scanPage is the number of items that one request of a scan returns at most.
const scanPage = 1000

// scanned returns the next page of a scan.
func (s *Store) scanned(ctx context.Context, pages *runtime.Pager[azcosmos.QueryItemsResponse]) (
	page azcosmos.QueryItemsResponse, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err = s.again(ctx, func() (err error) {
		page, err = pages.NextPage(ctx)
		return err
	})
	return page, err
}

// Describe implements outside.Unordered.
func (s unordered) Describe(ctx context.Context, keys []string, metadata map[string]string) ([]state.Item, error) {
	const op = "cosmosdb.List"
	if err := s.gate.Enter(ctx, op); err != nil || len(keys) == 0 {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return s.query(ctx, op, "c.id, c.partitionKey, c._etag, c._ts, c.ttl", state.BulkGetRequest{Keys: keys,
		ReadOptions: state.ReadOptions{Consistency: state.Strong, Metadata: metadata}})
}
