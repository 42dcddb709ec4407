package http

import (
	"net/http"
	"net/url"
	"strconv"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/http/jsonbody"
	"github.com/quorate/quorate/api/http/watches"
	"github.com/quorate/quorate/component/state"
)

// statePrefix is the beginning of all paths of state.
const statePrefix = "/v1.0/state/"

// stateRoutes serves state and its watches. Face.direct finds its most frequent routes without the mux.
type stateRoutes struct {
	*core
	state   *api.State
	watches *watches.Sender
}

func (s *stateRoutes) routes() []route {
	return []route{
		{verbs: "GET", path: "/v1.0/state/{store}", serve: s.listState, exact: true},
		{verbs: "POST PUT", path: "/v1.0/state/{store}", serve: s.saveState, often: true},
		{verbs: "POST PUT", path: "/v1.0/state/{store}/bulk", serve: s.bulkGetState},
		{verbs: "POST PUT", path: "/v1.0/state/{store}/transaction", serve: s.transactState},
		{verbs: "GET", path: "/v1.0/state/{store}/*", serve: s.getState, often: true},
		{verbs: "DELETE", path: "/v1.0/state/{store}/*", serve: s.deleteState},
		{verbs: "GET", path: "/v1.0/watch/{store}", serve: s.watchState, noHead: true},
	}
}

// getState serves GET /v1.0/state/{store}/{key}.
func (s *stateRoutes) getState(p *reply, r *http.Request) error {
	store, key, err := stateKey(r.URL)
	if err != nil {
		return err
	}
	options, err := readOptions(r)
	if err != nil {
		return err
	}
	ctx := s.deadline(p, r)
	defer ctx.end()
	request := api.GetRequest{Store: store, Key: key, ReadOptions: options}
	item, err := s.held(p, r, &request.ReadOptions, func() (state.Item, error) { return s.state.Get(ctx, request) })
	if err != nil {
		return err
	}
	return p.item(&item, true)
}

// saveState serves POST and PUT /v1.0/state/{store}.
func (s *stateRoutes) saveState(p *reply, r *http.Request) error {
	store, query, err := s.openState(r)
	if err != nil {
		return err
	}
	body, err := s.body(p, r)
	if err != nil {
		return err
	}
	defer s.release(body)
	items, err := s.decodeSave(p, r, body.data)
	if err != nil {
		return err
	}
	ctx := s.deadline(p, r)
	defer ctx.end()
	p.share.Work()
	written, err := s.state.Save(ctx, api.SaveRequest{Store: store, Items: items, WriteOptions: query.writeOptions(r)})
	if err != nil {
		return err
	}
	p.written(&written, onlyETag(&written))
	return nil
}

// onlyETag returns the new ETag if one item was written and its ETag is known, and otherwise an empty string.
func onlyETag(w *state.Written) string {
	if len(w.ETags) == 1 {
		return w.ETags[0]
	}
	return ""
}

// bulkGetState serves POST and PUT /v1.0/state/{store}/bulk.
func (s *stateRoutes) bulkGetState(p *reply, r *http.Request) error {
	request, err := s.decodeBulkGet(p, r)
	if err != nil {
		return err
	}
	ctx := s.deadline(p, r)
	defer ctx.end()
	bulk, err := s.bulk(p, r, request, func(request api.BulkGetRequest) (api.Bulk, error) {
		return s.state.BulkGet(ctx, request)
	})
	if err != nil {
		return err
	}
	proofHeaders(p.Header(), nil, &bulk.Proof)
	b := s.buffer()
	defer s.release(b)
	b.data = jsonbody.AppendBulk(b.data, bulk.Items)
	if len(b.data) < countedAnswer {
		p.answer.Release() // much more is reserved than the answer needs
	}
	return p.send(http.StatusOK, valueJSON, b.data)
}

func (s *stateRoutes) decodeBulkGet(p *reply, r *http.Request) (api.BulkGetRequest, error) {
	store, query, err := s.openState(r)
	if err != nil {
		return api.BulkGetRequest{}, err
	}
	body, err := s.body(p, r)
	if err != nil {
		return api.BulkGetRequest{}, err
	}
	defer s.release(body)
	in, err := s.decodeBulk(p, r, body.data)
	if err != nil {
		return api.BulkGetRequest{}, err
	}
	options, err := query.readOptions(r)
	options.Metadata = overlay(in.Metadata, query.metadata)
	return api.BulkGetRequest{Store: store, Keys: in.Keys, Parallelism: in.Parallelism, ReadOptions: options}, err
}

// overlay merges the metadata of the body and of the query. If a name is in both, the value of the query applies.
// overlay may modify body and return it.
func overlay(body, query map[string]string) map[string]string {
	if len(body) == 0 {
		return query
	}
	for name, value := range query {
		body[name] = value
	}
	return body
}

// deleteState serves DELETE /v1.0/state/{store}/{key}.
func (s *stateRoutes) deleteState(p *reply, r *http.Request) error {
	request, err := decodeDelete(r)
	if err != nil {
		return err
	}
	ctx := s.deadline(p, r)
	defer ctx.end()
	written, err := s.state.Delete(ctx, request)
	if err != nil {
		return err
	}
	p.written(&written, "")
	return nil
}

func decodeDelete(r *http.Request) (d api.DeleteRequest, err error) {
	if d.Store, d.Key, err = stateKey(r.URL); err != nil {
		return d, err
	}
	q, err := parseQuery(r)
	if err != nil {
		return d, err
	}
	if d.Concurrency, err = state.ParseConcurrency(q.concurrency); err != nil {
		return d, api.InvalidOption("", err)
	}
	if d.Consistency, err = state.ParseConsistency(q.consistency); err != nil {
		return d, api.InvalidOption("", err)
	}
	d.ETag = header(r, headerIfMatch)
	d.WriteOptions = q.writeOptions(r)
	return d, nil
}

// transactState serves POST and PUT /v1.0/state/{store}/transaction.
func (s *stateRoutes) transactState(p *reply, r *http.Request) error {
	store, query, err := s.openState(r)
	if err != nil {
		return err
	}
	body, err := s.body(p, r)
	if err != nil {
		return err
	}
	defer s.release(body)
	operations, metadata, err := s.decodeTransaction(p, r, store, body.data)
	if err != nil {
		return err
	}
	ctx := s.deadline(p, r)
	defer ctx.end()
	p.share.Work()
	written, err := s.state.Transact(ctx, api.TransactRequest{
		Store: store, Operations: operations, StoreMetadata: metadata, WriteOptions: query.writeOptions(r),
		Header: traceOf(r), Acks: r.Header[headerAck],
	})
	if err != nil {
		return err
	}
	p.written(&written, "")
	return nil
}

// listState serves GET /v1.0/state/{store}.
func (s *stateRoutes) listState(p *reply, r *http.Request) error {
	request, err := decodeList(r)
	if err != nil {
		return err
	}
	ctx := s.deadline(p, r)
	defer ctx.end()
	page, err := s.state.List(ctx, request)
	if err != nil {
		return err
	}
	proofHeaders(p.Header(), nil, &page.Proof)
	b := s.buffer()
	defer s.release(b)
	b.data = jsonbody.AppendPage(b.data, &page)
	return p.send(http.StatusOK, valueJSON, b.data)
}

func decodeList(r *http.Request) (l api.ListRequest, err error) {
	if l.Store, err = stateStore(r.URL); err != nil {
		return l, err
	}
	q, err := parseQuery(r)
	if err != nil {
		return l, err
	}
	if l.Limit, err = parseLimit(q.limit); err != nil {
		return l, err
	}
	l.Prefix, l.Token = q.prefix, q.token
	l.ReadOptions, err = q.readOptions(r)
	return l, err
}

func parseLimit(text string) (int, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, api.MalformedRequest("limit must be a whole number above zero")
	}
	return n, nil
}

// openState reads the store name and the query parameters of a request, before its body is read. It returns an error
// if the store cannot be used.
func (s *stateRoutes) openState(r *http.Request) (store string, q query, err error) {
	if store, err = stateStore(r.URL); err != nil {
		return "", q, err
	}
	if err = s.state.Check(store); err != nil {
		return "", q, err
	}
	q, err = parseQuery(r)
	return store, q, err
}

// readOptions returns the options of a read of one key, from the query and the headers.
func readOptions(r *http.Request) (api.ReadOptions, error) {
	if r.URL.RawQuery == "" {
		return api.ReadOptions{Session: header(r, headerSession), Trace: api.TraceID(header(r, headerTraceparent))}, nil
	}
	q, err := parseQuery(r)
	if err != nil {
		return api.ReadOptions{}, err
	}
	return q.readOptions(r)
}

// decodeSave reads the body of a save.
func (s *stateRoutes) decodeSave(p *reply, r *http.Request, body []byte) ([]api.Item, error) {
	t := jsonbody.TallyItems(body)
	if err := s.afford(p, r, body, &t, s.state.CheckItems(t.List)); err != nil {
		return nil, err
	}
	return jsonbody.DecodeSave(body, t.List)
}

// decodeTransaction decodes the body of a state transaction.
func (s *stateRoutes) decodeTransaction(p *reply, r *http.Request, store string, body []byte) ([]api.Operation,
	map[string]string, error) {
	t := jsonbody.TallyTransaction(body)
	if err := s.afford(p, r, body, &t, s.state.CheckOperations(store, t.List)); err != nil {
		return nil, nil, err
	}
	return jsonbody.DecodeTransaction(body)
}

// decodeBulk reads the body of a bulk read.
func (s *stateRoutes) decodeBulk(p *reply, r *http.Request, body []byte) (jsonbody.Bulk, error) {
	t := jsonbody.TallyBulk(body)
	if err := s.afford(p, r, body, &t, s.state.CheckKeys(t.List)); err != nil {
		return jsonbody.Bulk{}, err
	}
	return jsonbody.DecodeBulk(body)
}

// stateStore returns the store of a path without a key.
func stateStore(u *url.URL) (string, error) {
	path := restOf(u, statePrefix)
	return path.next()
}

// stateKey returns the store and the key of a path.
func stateKey(u *url.URL) (store, key string, err error) {
	path := restOf(u, statePrefix)
	if store, err = path.next(); err != nil {
		return "", "", err
	}
	key, err = path.all()
	return store, key, err
}
