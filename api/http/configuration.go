package http

import (
	"encoding/json"
	"net/http"
	"net/url"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/configurations"
	"github.com/quorate/quorate/api/http/jsonbody"
	"github.com/quorate/quorate/component/configuration"
	"github.com/quorate/quorate/internal/fault"
)

// configurationRoutes serves configuration items and the subscriptions to them.
type configurationRoutes struct {
	*core
	configurations *configurations.Service
}

func (c *configurationRoutes) routes() []route {
	return []route{
		{verbs: "GET", path: "/v1.0/configuration/{store}", serve: c.getConfiguration},
		{verbs: "GET", path: "/v1.0-alpha1/configuration/{store}", serve: c.getConfiguration},
		{verbs: "POST PUT", path: "/v1.0/configuration/{store}", serve: c.putConfiguration},
		{verbs: "DELETE", path: "/v1.0/configuration/{store}", serve: c.deleteConfiguration},
		{verbs: "GET", path: "/v1.0/configuration/{store}/subscribe", serve: c.subscribeConfiguration,
			noHead: true},
		{verbs: "GET", path: "/v1.0-alpha1/configuration/{store}/subscribe", serve: c.subscribeConfiguration,
			noHead: true},
		{verbs: "GET", path: "/v1.0/configuration/{store}/{id}/unsubscribe", serve: c.unsubscribeConfiguration,
			noHead: true},
		{verbs: "GET", path: "/v1.0-alpha1/configuration/{store}/{id}/unsubscribe", serve: c.unsubscribeConfiguration,
			noHead: true},
	}
}

// configurationPath returns the two path segments after "configuration". The first one is the store.
func configurationPath(u *url.URL) (store, second string, err error) {
	path, store, err := storePath(u)
	if err == nil {
		second, err = path.next()
	}
	return store, second, err
}

// configurationRequest decodes the path, the query and the headers of a request. The query parameter key may be
// repeated.
func configurationRequest(r *http.Request) (c configurations.Request, err error) {
	if c.Store, _, err = configurationPath(r.URL); err != nil {
		return c, err
	}
	q, err := parseQuery(r)
	if err != nil {
		return c, err
	}
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return c, api.MalformedRequest("the query cannot be read: " + err.Error())
	}
	c.Keys, c.Metadata = values["key"], q.metadata
	c.Session, c.Trace = header(r, headerSession), api.TraceID(header(r, headerTraceparent))
	return c, nil
}

// getConfiguration serves GET /v1.0/configuration/{store} and its alpha form.
func (c *configurationRoutes) getConfiguration(p *reply, r *http.Request) error {
	request, err := configurationRequest(r)
	if err != nil {
		return err
	}
	ctx := c.deadline(p, r)
	defer ctx.end()
	found, err := c.configurations.Get(ctx, request)
	if err != nil {
		return err
	}
	if found.Session != "" {
		p.Header()[headerSession] = []string{found.Session}
	}
	if len(found.Items) == 0 {
		p.empty()
		return nil
	}
	body, err := json.Marshal(itemsByKey(found.Items))
	if err != nil {
		return fault.Wrap(err, "http.getConfiguration", "encoding the answer")
	}
	return p.send(http.StatusOK, valueJSON, body)
}

func itemsByKey(items []configuration.Item) map[string]configurations.Item {
	out := make(map[string]configurations.Item, len(items))
	for i := range items {
		out[items[i].Key] = configurations.ItemOf(&items[i])
	}
	return out
}

// subscribeConfiguration serves GET /v1.0/configuration/{store}/subscribe, also with the prefix /v1.0-alpha1.
func (c *configurationRoutes) subscribeConfiguration(p *reply, r *http.Request) error {
	request, err := configurationRequest(r)
	if err != nil {
		return err
	}
	ctx := c.deadline(p, r)
	defer ctx.end()
	id, err := c.configurations.SubscribeCallback(ctx, request)
	if err != nil {
		return err
	}
	p.respond(http.StatusOK, valueJSON, append(jsonbody.AppendString([]byte(`{"id":`), id), '}'))
	return nil
}

// unsubscribeConfiguration serves GET /v1.0/configuration/{store}/{id}/unsubscribe, also with the prefix
// /v1.0-alpha1.
func (c *configurationRoutes) unsubscribeConfiguration(p *reply, r *http.Request) error {
	store, id, err := configurationPath(r.URL)
	if err != nil {
		return err
	}
	if err = c.configurations.UnsubscribeCallback(store, id); err == nil {
		p.respond(http.StatusOK, valueJSON, []byte(`{"ok":true}`))
		return nil
	}
	e := api.AsError(err)
	if e.Code != api.CodeConfigurationUnsubscribe {
		return err
	}
	body := jsonbody.AppendString([]byte(`{"ok":false,"errorCode":`), e.Code)
	body = append(jsonbody.AppendString(append(body, `,"message":`...), e.Message), '}')
	p.respond(http.StatusInternalServerError, valueJSON, body)
	return nil
}

// putConfiguration serves PUT and POST /v1.0/configuration/{store}.
func (c *configurationRoutes) putConfiguration(p *reply, r *http.Request) error {
	request, err := configurationRequest(r)
	if err != nil {
		return err
	}
	body, err := c.body(p, r)
	if err != nil {
		return err
	}
	defer c.release(body)
	t := jsonbody.TallyItems(body.data)
	if err := c.afford(p, r, body.data, &t, api.CheckElements(t.List)); err != nil {
		return err
	}
	var changes []configurations.Change
	if err := json.Unmarshal(body.data, &changes); err != nil {
		return api.MalformedRequest(`the body is no JSON array of {"key","value","metadata","version"}, ` +
			"all of them strings, and metadata an object of strings")
	}
	for i := range changes {
		changes[i].Delete = false
	}
	return c.writeConfiguration(p, r, request, changes)
}

// deleteConfiguration serves DELETE /v1.0/configuration/{store}?key=.
func (c *configurationRoutes) deleteConfiguration(p *reply, r *http.Request) error {
	request, err := configurationRequest(r)
	if err != nil {
		return err
	}
	if len(request.Keys) == 0 {
		return api.MalformedRequest("the query names no key (add key=, which may be repeated)")
	}
	changes := make([]configurations.Change, len(request.Keys))
	for i, key := range request.Keys {
		changes[i] = configurations.Change{Key: key, Delete: true}
	}
	return c.writeConfiguration(p, r, request, changes)
}

func (c *configurationRoutes) writeConfiguration(p *reply, r *http.Request, request configurations.Request,
	changes []configurations.Change) error {
	ctx := c.deadline(p, r)
	defer ctx.end()
	session, err := c.configurations.Write(ctx, configurations.WriteRequest{Store: request.Store, Changes: changes,
		Session: request.Session, Trace: request.Trace})
	if err != nil {
		return err
	}
	if session != "" {
		p.Header()[headerSession] = []string{session}
	}
	p.empty()
	return nil
}
