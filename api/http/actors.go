package http

import (
	"net/http"

	"github.com/quorate/quorate/api"
)

// getActorState serves GET /v1.0/actors/{type}/{id}/state/{key}. The answer has no ETag:
// an actor has its state to itself.
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
	item, err := f.state.ActorGet(ctx, api.ActorGetRequest{Actor: actor, Key: key, ReadOptions: options})
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
	operations, err := decodeActorTransaction(body.data)
	if err != nil {
		return err
	}
	ctx := f.deadline(p, r)
	defer ctx.end()
	written, err := f.state.ActorTransact(ctx, api.ActorTransactRequest{
		Actor: actor, Operations: operations, WriteOptions: query.writeOptions(r),
	})
	if err != nil {
		return err
	}
	p.written(&written, "")
	return nil
}
