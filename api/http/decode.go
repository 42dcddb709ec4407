package http

import (
	"net/http"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/http/jsonbody"
)

// afford reserves memory for the decoded values of a body. tooMany is the error for too many elements, or nil if their
// number is permitted. If the body has too many elements or too much metadata, afford reserves nothing. It then
// returns the JSON error of an invalid body, and otherwise the error for too many parts.
func (f *Face) afford(p *reply, r *http.Request, body []byte, t *jsonbody.Tally, tooMany error) error {
	if tooMany == nil {
		tooMany = api.CheckMetadata(t.Metadata)
	}
	if tooMany == nil {
		return f.reserve(p, r, t.Memory())
	}
	if err := jsonbody.Check(body); err != nil {
		return err
	}
	return tooMany
}

// decodeSave reads the body of a save.
func (f *Face) decodeSave(p *reply, r *http.Request, body []byte) ([]api.Item, error) {
	t := jsonbody.TallyItems(body)
	if err := f.afford(p, r, body, &t, f.state.CheckItems(t.List)); err != nil {
		return nil, err
	}
	return jsonbody.DecodeSave(body, t.List)
}

// decodeTransaction decodes the body of a state transaction.
func (f *Face) decodeTransaction(p *reply, r *http.Request, store string, body []byte) ([]api.Operation,
	map[string]string, error) {
	t := jsonbody.TallyTransaction(body)
	if err := f.afford(p, r, body, &t, f.state.CheckOperations(store, t.List)); err != nil {
		return nil, nil, err
	}
	return jsonbody.DecodeTransaction(body)
}

// decodeActorTransaction decodes the body of an actor transaction.
func (f *Face) decodeActorTransaction(p *reply, r *http.Request, body []byte) ([]api.Operation, error) {
	t := jsonbody.TallyOperations(body)
	if err := f.afford(p, r, body, &t, f.state.CheckActorOperations(t.List)); err != nil {
		return nil, err
	}
	return jsonbody.DecodeOperations(body, t.List)
}

// decodeBulk reads the body of a bulk read.
func (f *Face) decodeBulk(p *reply, r *http.Request, body []byte) (jsonbody.Bulk, error) {
	t := jsonbody.TallyBulk(body)
	if err := f.afford(p, r, body, &t, f.state.CheckKeys(t.List)); err != nil {
		return jsonbody.Bulk{}, err
	}
	return jsonbody.DecodeBulk(body)
}
