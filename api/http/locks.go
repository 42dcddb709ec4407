package http

import (
	"net/http"
	"net/url"
	"strconv"
	"time"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component/lock"
)

// Headers of answers and requests about locks.
const (
	headerAck           = "Quorate-Ack"           // tokens of deliveries of messages; a transaction acknowledges them
	headerLock          = "Quorate-Lock"          // fencing tokens; a write fails unless the locks have them
	headerLockRevision  = "Quorate-Lock-Revision" // fencing token of the lock that is granted or released
	headerLockExpiresIn = "Quorate-Lock-Expires-In-Ms"
)

// lockRoutes serves locks.
type lockRoutes struct {
	*core
	locks *api.Locks
}

func (l *lockRoutes) routes() []route {
	return []route{
		{verbs: "POST", path: "/v1.0/lock/{store}", serve: l.tryLock},
		{verbs: "POST", path: "/v1.0-alpha1/lock/{store}", serve: l.tryLock},
		{verbs: "POST", path: "/v1.0/lock/{store}/renew", serve: l.renewLock},
		{verbs: "GET", path: "/v1.0/lock/{store}/*", serve: l.getLock},
		{verbs: "POST", path: "/v1.0/unlock/{store}", serve: l.unlock},
		{verbs: "POST", path: "/v1.0-alpha1/unlock/{store}", serve: l.unlock},
	}
}

// lockPath returns the parts of a path after "lock" or "unlock": the store and the remaining path.
func lockPath(u *url.URL) (store, rest string, err error) {
	path, store, err := storePath(u)
	if err == nil {
		rest, err = path.all()
	}
	return store, rest, err
}

// lockRequest decodes a request to lock, renew or unlock. The body has the fields of Dapr's TryLockRequest.
func (l *lockRoutes) lockRequest(p *reply, r *http.Request) (api.LockRequest, error) {
	store, _, err := lockPath(r.URL)
	if err != nil {
		return api.LockRequest{}, err
	}
	body, err := l.body(p, r)
	if err != nil {
		return api.LockRequest{}, err
	}
	defer l.release(body)
	var in runtimev1.TryLockRequest
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(body.data, &in); err != nil {
		return api.LockRequest{}, api.MalformedRequest(
			"the body is no JSON object with resourceId, lockOwner and expiryInSeconds")
	}
	return api.LockRequest{Store: store, Resource: in.GetResourceId(), Owner: in.GetLockOwner(),
		Expiry: time.Duration(in.GetExpiryInSeconds()) * time.Second}, nil
}

// tryLock serves POST /v1.0/lock/{store} and its alpha form.
func (l *lockRoutes) tryLock(p *reply, r *http.Request) error {
	request, err := l.lockRequest(p, r)
	if err != nil {
		return err
	}
	if text := r.URL.Query().Get("wait"); text != "" {
		if request.Wait, err = time.ParseDuration(text); err != nil {
			return api.MalformedRequest("wait is no duration such as 30s")
		}
		p.share.Release() // the request may wait for minutes, and its body is decoded
	}
	request.RequestID = header(r, headerRequestID)
	ctx := &deadline{parent: r.Context(), at: p.start.Add(l.timeout + min(max(request.Wait, 0), api.MaxLockWait))}
	defer ctx.end()
	g, err := l.locks.TryLock(ctx, request)
	if err != nil {
		return err
	}
	l.granted(p, &g)
	return nil
}

// renewLock serves POST /v1.0/lock/{store}/renew.
func (l *lockRoutes) renewLock(p *reply, r *http.Request) error {
	request, err := l.lockRequest(p, r)
	if err != nil {
		return err
	}
	ctx := l.deadline(p, r)
	defer ctx.end()
	g, err := l.locks.Renew(ctx, request)
	if err != nil {
		return err
	}
	l.granted(p, &g)
	return nil
}

// granted answers a request to lock or to renew a lock with its result.
func (l *lockRoutes) granted(p *reply, g *lock.Grant) {
	if g.Granted && g.Token != 0 {
		p.Header()[headerLockRevision] = []string{strconv.FormatUint(g.Token, 10)}
		p.Header()[headerLockExpiresIn] = []string{strconv.FormatInt(g.Expiry.Milliseconds(), 10)}
	}
	p.respond(http.StatusOK, valueJSON, append(strconv.AppendBool([]byte(`{"success":`), g.Granted), '}'))
}

// unlock serves POST /v1.0/unlock/{store} and its alpha form.
func (l *lockRoutes) unlock(p *reply, r *http.Request) error {
	request, err := l.lockRequest(p, r)
	if err != nil {
		return err
	}
	request.Revision = header(r, headerLockRevision)
	ctx := l.deadline(p, r)
	defer ctx.end()
	s, err := l.locks.Unlock(ctx, request)
	if err != nil {
		return err
	}
	p.respond(http.StatusOK, valueJSON, append(strconv.AppendInt([]byte(`{"status":`), int64(s), 10), '}'))
	return nil
}

// getLock serves GET /v1.0/lock/{store}/{resource}.
func (l *lockRoutes) getLock(p *reply, r *http.Request) error {
	store, resource, err := lockPath(r.URL)
	if err != nil {
		return err
	}
	ctx := l.deadline(p, r)
	defer ctx.end()
	g, err := l.locks.Look(ctx, api.LockRequest{Store: store, Resource: resource})
	if err != nil {
		return err
	}
	b := strconv.AppendBool([]byte(`{"held":`), g.Granted)
	if g.Granted {
		b = strconv.AppendUint(append(b, `,"revision":"`...), g.Token, 10)
		b = strconv.AppendInt(append(b, `","expiresInMs":`...), g.Expiry.Milliseconds(), 10)
	}
	p.respond(http.StatusOK, valueJSON, append(b, '}'))
	return nil
}
