package http

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/http/jsonbody"
	"github.com/quorate/quorate/component/bindings"
)

const bindingsPrefix = "/v1.0/bindings/"

// bindingBody is the body of a call of an output binding.
type bindingBody struct {
	Data      json.RawMessage   `json:"data"`
	Metadata  map[string]string `json:"metadata"`
	Operation string            `json:"operation"`
}

// traceHeaders returns the names of the headers that carry the trace context. Their values are passed on to the
// external system as metadata.
func traceHeaders() []string { return []string{"Traceparent", "Tracestate", "Baggage"} }

// bindingRoutes serves output bindings.
type bindingRoutes struct {
	*core
	bindings *api.Bindings
}

func (b *bindingRoutes) routes() []route {
	return []route{
		{verbs: "POST PUT", path: "/v1.0/bindings/{name}", serve: b.invokeBinding},
	}
}

// invokeBinding serves POST and PUT /v1.0/bindings/{name}. The metadata of the external system's response becomes
// headers with names of the form metadata.<name>, also if the operation failed.
func (b *bindingRoutes) invokeBinding(p *reply, r *http.Request) error {
	path := restOf(r.URL, bindingsPrefix)
	name, err := path.all()
	if err != nil {
		return err
	}
	body, err := b.body(p, r)
	if err != nil {
		return err
	}
	defer b.release(body)
	request, err := b.decodeBinding(p, r, body.data)
	if err != nil {
		return err
	}
	ctx := b.deadline(p, r)
	defer ctx.end()
	response, err := b.bindings.Invoke(ctx, strings.TrimSuffix(name, "/"), request)
	if response != nil {
		metadataHeaders(p.Header(), response.Metadata)
	}
	switch {
	case err != nil:
		return err
	case response == nil || len(response.Data) == 0:
		p.empty()
		return nil
	}
	if err := p.room(len(response.Data)); err != nil {
		return api.AnswerOverloaded(err)
	}
	p.respond(http.StatusOK, valueJSON, response.Data)
	return nil
}

func (b *bindingRoutes) decodeBinding(p *reply, r *http.Request, body []byte) (bindings.Request, error) {
	t := jsonbody.TallyBinding(body)
	if err := b.afford(p, r, body, &t, nil); err != nil {
		return bindings.Request{}, err
	}
	var in bindingBody
	if err := jsonbody.Decode(body, &in); err != nil {
		return bindings.Request{}, err
	}
	if in.Metadata == nil {
		in.Metadata = map[string]string{}
	}
	if err := api.CheckBaggage(r.Header["Baggage"]); err != nil {
		return bindings.Request{}, err
	}
	for _, name := range traceHeaders() {
		key := strings.ToLower(name)
		if v := strings.Join(r.Header[name], ","); v != "" && in.Metadata[key] == "" {
			in.Metadata[key] = v
		}
	}
	data := slices.Clone(in.Data) // the buffer is reused, and a client library may still be sending
	if data == nil {
		data = json.RawMessage("null")
	}
	return bindings.Request{Operation: in.Operation, Data: data, Metadata: in.Metadata}, nil
}

// metadataHeaders adds metadata to h as headers. It skips names and values that are invalid in an HTTP header.
func metadataHeaders(h http.Header, metadata map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(metadata)) {
		value := metadata[name]
		if tokenText(name) && !strings.ContainsFunc(value, func(r rune) bool {
			return r < ' ' && r != '\t' || r == 0x7f
		}) {
			h["Metadata."+name] = []string{value}
		}
	}
}

// tokenText reports whether s is a valid part of a header name (a token of RFC 9110).
func tokenText(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	})
}
