package http

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/actors"
	"github.com/quorate/quorate/api/http/jsonbody"
	"github.com/quorate/quorate/component/state"
)

const actorsPrefix = "/v1.0/actors/"

// actorRoutes serves actors: their state, calls of their methods, reminders and timers.
type actorRoutes struct {
	*core
	state  *api.State
	actors *actors.Service
}

func (a *actorRoutes) routes() []route {
	return []route{
		{verbs: "POST PUT", path: "/v1.0/actors/{type}/{id}/state", serve: a.transactActorState},
		{verbs: "GET", path: "/v1.0/actors/{type}/{id}/state/*", serve: a.getActorState},
		{verbs: "GET POST PUT DELETE", path: "/v1.0/actors/{type}/{id}/method/*", serve: a.callActor},
		{verbs: "POST PUT", path: "/v1.0/actors/{type}/{id}/reminders/*", serve: a.setReminder},
		{verbs: "GET", path: "/v1.0/actors/{type}/{id}/reminders/*", serve: a.getReminder},
		{verbs: "DELETE", path: "/v1.0/actors/{type}/{id}/reminders/*", serve: a.deleteReminder},
		{verbs: "POST PUT", path: "/v1.0/actors/{type}/{id}/timers/*", serve: a.setTimer},
		{verbs: "DELETE", path: "/v1.0/actors/{type}/{id}/timers/*", serve: a.deleteTimer},
	}
}

// getActorState serves GET /v1.0/actors/{type}/{id}/state/{key}. The answer has no ETag, because only the actor
// itself writes its state.
func (a *actorRoutes) getActorState(p *reply, r *http.Request) error {
	actor, key, err := actorPath(r.URL)
	if err != nil {
		return err
	}
	options, err := readOptions(r)
	if err != nil {
		return err
	}
	ctx := a.deadline(p, r)
	defer ctx.end()
	request := api.ActorGetRequest{Actor: actor, Key: key, ReadOptions: options}
	item, err := a.held(p, r, &request.ReadOptions, func() (state.Item, error) {
		return a.state.ActorGet(ctx, request)
	})
	if err != nil {
		return err
	}
	return p.item(&item, false)
}

// transactActorState serves POST and PUT /v1.0/actors/{type}/{id}/state.
func (a *actorRoutes) transactActorState(p *reply, r *http.Request) error {
	actor, _, err := actorPath(r.URL)
	if err != nil {
		return err
	}
	if err := a.state.CheckActors(); err != nil {
		return err
	}
	query, err := parseQuery(r)
	if err != nil {
		return err
	}
	body, err := a.body(p, r)
	if err != nil {
		return err
	}
	defer a.release(body)
	operations, err := a.decodeActorTransaction(p, r, body.data)
	if err != nil {
		return err
	}
	ctx := a.deadline(p, r)
	defer ctx.end()
	p.share.Work()
	written, err := a.state.ActorTransact(ctx, api.ActorTransactRequest{
		Actor: actor, Operations: operations, WriteOptions: query.writeOptions(r),
	})
	if err != nil {
		return err
	}
	p.written(&written, "")
	return nil
}

// decodeActorTransaction decodes the body of an actor transaction.
func (a *actorRoutes) decodeActorTransaction(p *reply, r *http.Request, body []byte) ([]api.Operation, error) {
	t := jsonbody.TallyOperations(body)
	if err := a.afford(p, r, body, &t, a.state.CheckActorOperations(t.List)); err != nil {
		return nil, err
	}
	return jsonbody.DecodeOperations(body, t.List)
}

// actorPath returns the actor and the key in a path such as /v1.0/actors/{type}/{id}/state/{key}. Instead of "state",
// the path may have "method", "reminders" or "timers". The key is the part of the path after that word.
func actorPath(u *url.URL) (actor api.Actor, key string, err error) {
	path := restOf(u, actorsPrefix)
	if actor.Type, err = path.next(); err != nil {
		return actor, "", err
	}
	if actor.ID, err = path.next(); err != nil {
		return actor, "", err
	}
	if _, err = path.next(); err != nil { // "state"
		return actor, "", err
	}
	key, err = path.all()
	return actor, key, err
}

// actorMethod returns the method in the path /v1.0/actors/{type}/{id}/method/{method}, followed by the query of the
// request. It removes dot segments and duplicate slashes. It returns an error if the method is invalid.
func actorMethod(r *http.Request) (string, error) {
	path, query, mark := received(r)
	rest, _ := strings.CutPrefix(collapsed(r.Method, path), actorsPrefix)
	parts := strings.SplitN(rest, "/", 4) // type, id, "method", the method
	if len(parts) < 4 {
		return actors.ParseMethod("")
	}
	if mark {
		return actors.ParseMethod(parts[3] + "?" + query)
	}
	return actors.ParseMethod(parts[3])
}
