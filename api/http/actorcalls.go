package http

import (
	"bytes"
	"net/http"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/actors"
)

// callActor serves calls of actor methods. The request timeout limits the time to read the body and to find the owner
// of the actor. It does not limit the execution of the method.
func (a *actorRoutes) callActor(p *reply, r *http.Request) error {
	actor, _, err := actorPath(r.URL)
	if err != nil {
		return err
	}
	method, err := actorMethod(r)
	if err != nil {
		return err
	}
	if err := a.state.CheckActors(); err != nil {
		return err
	}
	body, err := a.body(p, r)
	if err != nil {
		return err
	}
	defer a.release(body)
	answer, err := a.actors.Do(r.Context(), &actors.Call{Actor: actor, Method: method, Verb: r.Method, Header: r.Header,
		Body: bytes.Clone(body.data)}) // the application may read the body after the caller has gone
	if err != nil {
		return err
	}
	if err := p.room(len(answer.Body)); err != nil {
		return api.AnswerOverloaded(err)
	}
	h := p.Header()
	for name, values := range answer.Header {
		h[name] = values
	}
	if len(answer.Body) == 0 {
		p.WriteHeader(answer.Status)
		return nil
	}
	p.respond(answer.Status, answer.Header[headerContentType], answer.Body)
	return nil
}
