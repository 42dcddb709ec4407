package grpc

import (
	"context"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component/state"
)

// stateMethods serves state.
type stateMethods struct {
	*core
	state *api.State
}

// GetState reads one key. If the key does not exist, the answer is empty.
func (s *stateMethods) GetState(ctx context.Context,
	in *runtimev1.GetStateRequest) (*runtimev1.GetStateResponse, error) {
	options, err := readOptions(ctx, in.GetConsistency(), in.GetMetadata())
	if err != nil {
		return nil, err
	}
	item, err := s.held(ctx, &options, func() (state.Item, error) {
		return s.state.Get(ctx, api.GetRequest{Store: in.GetStoreName(), Key: in.GetKey(), ReadOptions: options})
	})
	if err != nil {
		return nil, err
	}
	prove(ctx, &item.Proof)
	return &runtimev1.GetStateResponse{Data: item.Value, Etag: item.ETag, Metadata: itemMetadata(&item)}, nil
}

// GetBulkState reads several keys. The item of a key that cannot be read has its own error.
func (s *stateMethods) GetBulkState(ctx context.Context,
	in *runtimev1.GetBulkStateRequest) (*runtimev1.GetBulkStateResponse, error) {
	request := api.BulkGetRequest{
		Store: in.GetStoreName(), Keys: in.GetKeys(), Parallelism: int(in.GetParallelism()),
		ReadOptions: api.ReadOptions{Session: first(ctx, keySession), Trace: trace(ctx), Metadata: in.GetMetadata()},
	}
	bulk, err := s.bulk(ctx, request, func(request api.BulkGetRequest) (api.Bulk, error) {
		return s.state.BulkGet(ctx, request)
	})
	if err != nil {
		return nil, err
	}
	prove(ctx, &bulk.Proof)
	out := &runtimev1.GetBulkStateResponse{Items: make([]*runtimev1.BulkStateItem, len(bulk.Items))}
	for i := range bulk.Items {
		item := &bulk.Items[i]
		out.Items[i] = &runtimev1.BulkStateItem{Key: item.Key, Data: item.Value, Etag: item.ETag,
			Metadata: itemMetadata(item)}
		if item.Err != nil {
			out.Items[i].Error = api.AsError(item.Err).Message
		}
	}
	return out, nil
}

// SaveState writes items. If the store supports transactions, it writes all or none.
func (s *stateMethods) SaveState(ctx context.Context, in *runtimev1.SaveStateRequest) (*emptypb.Empty, error) {
	items, err := decodeItems(in.GetStates())
	if err != nil {
		return nil, err
	}
	written, err := s.state.Save(ctx, api.SaveRequest{Store: in.GetStoreName(), Items: items,
		WriteOptions: writeOptions(ctx)})
	return empty(ctx, &written, err)
}

// DeleteState removes one key.
func (s *stateMethods) DeleteState(ctx context.Context, in *runtimev1.DeleteStateRequest) (*emptypb.Empty, error) {
	concurrency, consistency, err := decodeOptions(in.GetOptions(), "")
	if err != nil {
		return nil, err
	}
	options := writeOptions(ctx)
	options.Metadata = in.GetMetadata()
	written, err := s.state.Delete(ctx, api.DeleteRequest{
		Store: in.GetStoreName(), Key: in.GetKey(), ETag: in.GetEtag().GetValue(),
		Concurrency: concurrency, Consistency: consistency, WriteOptions: options,
	})
	return empty(ctx, &written, err)
}

// DeleteBulkState removes several keys. If the store supports transactions, it removes all keys or none.
func (s *stateMethods) DeleteBulkState(ctx context.Context,
	in *runtimev1.DeleteBulkStateRequest) (*emptypb.Empty, error) {
	items, err := decodeItems(in.GetStates())
	if err != nil {
		return nil, err
	}
	written, err := s.state.DeleteAll(ctx, api.DeleteAllRequest{Store: in.GetStoreName(), Items: items,
		WriteOptions: writeOptions(ctx)})
	return empty(ctx, &written, err)
}

// ExecuteStateTransaction applies all operations or none.
func (s *stateMethods) ExecuteStateTransaction(ctx context.Context,
	in *runtimev1.ExecuteStateTransactionRequest) (*emptypb.Empty, error) {
	operations := make([]api.Operation, len(in.GetOperations()))
	for i, o := range in.GetOperations() {
		operations[i].Name = o.GetOperationType()
		if err := decodeItem(o.GetRequest(), itemName(i, len(operations)), &operations[i].Item); err != nil {
			return nil, err
		}
	}
	written, err := s.state.Transact(ctx, api.TransactRequest{
		Store: in.GetStoreName(), Operations: operations, StoreMetadata: in.GetMetadata(),
		WriteOptions: writeOptions(ctx), Header: traceHeader(ctx),
		Acks: metadata.ValueFromIncomingContext(ctx, keyAck),
	})
	return empty(ctx, &written, err)
}
