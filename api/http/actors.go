package http

import (
	"net/http"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component/state"
)

// getActorState serves GET /v1.0/actors/{type}/{id}/state/{key}. The answer has no ETag, because only the actor
// itself writes its state.
func (f *Face) getActorState(p *reply, r *http.Request) error {
	actor, key, err := actorPath(r.URL)
	if err != nil {
		return err
	}
	options, err := readOptions(r)
	if err != nil {
		return err
	}
	ctx := f.deadline(p, r)
	defer ctx.end()
	request := api.ActorGetRequest{Actor: actor, Key: key, ReadOptions: options}
	item, err := f.held(p, r, &request.ReadOptions, func() (state.Item, error) {
		return f.state.ActorGet(ctx, request)
	})
	if err != nil {
		return err
	}
	p.item(&item, false)
	return nil
}

// transactActorState serves POST and PUT /v1.0/actors/{type}/{id}/state.
func (f *Face) transactActorState(p *reply, r *http.Request) error {
	actor, _, err := actorPath(r.URL)
	if err != nil {
		return err
	}
	if err := f.state.CheckActors(); err != nil {
		return err
	}
	query, err := parseQuery(r)
	if err != nil {
		return err
	}
	body, err := f.body(p, r)
	if err != nil {
		return err
	}
	defer f.release(body)
	operations, err := f.decodeActorTransaction(p, r, body.data)
	if err != nil {
		return err
	}
	ctx := f.deadline(p, r)
	defer ctx.end()
	p.share.Work()
	written, err := f.state.ActorTransact(ctx, api.ActorTransactRequest{
		Actor: actor, Operations: operations, WriteOptions: query.writeOptions(r),
	})
	if err != nil {
		return err
	}
	p.written(&written, "")
	return nil
}
