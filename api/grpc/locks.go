package grpc

import (
	"context"
	"strconv"
	"time"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/quorate/quorate/api"
)

// Metadata of calls and answers about locks.
const (
	keyAck           = "quorate-ack"           // tokens of deliveries of messages; a transaction acknowledges them
	keyLock          = "quorate-lock"          // fencing tokens; a write fails unless the locks have them
	keyLockRevision  = "quorate-lock-revision" // fencing token of the lock that is granted or released
	keyLockExpiresIn = "quorate-lock-expires-in-ms"
)

// lockMethods serves locks.
type lockMethods struct {
	locks *api.Locks
}

// TryLockAlpha1 acquires a lock for the lock owner in the request. If the lock already has an owner, Success in the
// answer is false.
func (s *lockMethods) TryLockAlpha1(ctx context.Context,
	in *runtimev1.TryLockRequest) (*runtimev1.TryLockResponse, error) {
	g, err := s.locks.TryLock(ctx, api.LockRequest{Store: in.GetStoreName(), Resource: in.GetResourceId(),
		Owner: in.GetLockOwner(), Expiry: time.Duration(in.GetExpiryInSeconds()) * time.Second,
		RequestID: first(ctx, keyRequestID)})
	if err != nil {
		return nil, err
	}
	if g.Granted && g.Token != 0 {
		_ = grpc.SetHeader(ctx, metadata.Pairs(keyLockRevision, strconv.FormatUint(g.Token, 10),
			keyLockExpiresIn, strconv.FormatInt(g.Expiry.Milliseconds(), 10))) // fails only outside of a call
	}
	return &runtimev1.TryLockResponse{Success: g.Granted}, nil
}

// UnlockAlpha1 ends a lock, if the lock owner in the request owns the lock.
func (s *lockMethods) UnlockAlpha1(ctx context.Context,
	in *runtimev1.UnlockRequest) (*runtimev1.UnlockResponse, error) {
	status, err := s.locks.Unlock(ctx, api.LockRequest{Store: in.GetStoreName(), Resource: in.GetResourceId(),
		Owner: in.GetLockOwner(), Revision: first(ctx, keyLockRevision)})
	if err != nil {
		return nil, err
	}
	return &runtimev1.UnlockResponse{Status: runtimev1.UnlockResponse_Status(status)}, nil //nolint:gosec // 0 to 3
}
