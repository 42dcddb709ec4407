package eventgridtest

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
)

// suffix is between a scope and the name of an event subscription.
const suffix = "/providers/Microsoft.EventGrid/eventSubscriptions/"

// operation is the creation of a subscription. It continues after the response to the request, as in Azure.
type operation struct {
	left    int
	failure string // why it fails; empty = it succeeds
}

// manage is the handler of the management API for event subscriptions.
func (f *Fake) manage(w http.ResponseWriter, r *http.Request, body []byte) {
	switch at := strings.ToLower(r.URL.Path); {
	case r.Header.Get("Authorization") != "Bearer "+f.managementToken():
		fail(w, http.StatusUnauthorized, "InvalidAuthenticationToken", "The access token is invalid.")
	case r.URL.Query().Get("api-version") == "":
		fail(w, http.StatusBadRequest, "MissingApiVersionParameter",
			"The api-version query parameter (?api-version=) is required for all requests.")
	case strings.Contains(at, "/operationsstatus/"):
		f.operation(w, path.Base(at))
	case !strings.Contains(at, strings.ToLower(suffix)):
		fail(w, http.StatusNotFound, "InvalidResourceType", "The resource type could not be found.")
	case r.Method == http.MethodGet:
		f.read(w, r.URL.Path)
	case r.Method == http.MethodPost && strings.HasSuffix(at, "/getfullurl"):
		f.fullURL(w, strings.TrimSuffix(at, "/getfullurl"))
	case r.Method == http.MethodPut:
		f.create(w, r, body)
	default:
		fail(w, http.StatusMethodNotAllowed, "MethodNotAllowed", "The method is not allowed.")
	}
}

func (f *Fake) read(w http.ResponseWriter, at string) {
	f.mu.Lock()
	properties, ok := f.subscriptions[strings.ToLower(at)]
	properties = maps.Clone(properties)
	f.mu.Unlock()
	if !ok {
		fail(w, http.StatusNotFound, "ResourceNotFound", "The Resource was not found.")
		return
	}
	write(w, http.StatusOK, document(at, properties))
}

// document returns the JSON document of a subscription in the form that Event Grid returns. resource is the resource id
// of the subscription. The query of the endpoint URL is omitted, because it may contain a secret.
func document(resource string, properties map[string]any) map[string]any {
	if d, ok := properties["destination"].(map[string]any); ok {
		d = maps.Clone(d)
		if p, ok := d["properties"].(map[string]any); ok {
			p = maps.Clone(p)
			if u, ok := p["endpointUrl"].(string); ok {
				p["endpointBaseUrl"], _, _ = strings.Cut(u, "?")
				p["endpointUrl"] = nil
			}
			d["properties"] = p
		}
		properties["destination"] = d
	}
	properties["topic"] = strings.Split(resource, suffix)[0]
	return map[string]any{"id": resource, "name": path.Base(resource), "type": "Microsoft.EventGrid/eventSubscriptions",
		"properties": properties}
}

func (f *Fake) fullURL(w http.ResponseWriter, at string) {
	f.mu.Lock()
	u := endpointOf(f.subscriptions[at])
	f.mu.Unlock()
	write(w, http.StatusOK, map[string]any{"endpointUrl": u})
}

func endpointOf(properties map[string]any) string {
	d, _ := properties["destination"].(map[string]any)
	p, _ := d["properties"].(map[string]any)
	u, _ := p["endpointUrl"].(string)
	return u
}

// create stores the requested subscription and performs the handshake with its endpoint. The response does not say
// whether the handshake succeeded. The client learns this when it polls the operation.
func (f *Fake) create(w http.ResponseWriter, r *http.Request, body []byte) {
	var asked struct {
		Properties map[string]any `json:"properties"`
	}
	if json.Unmarshal(body, &asked) != nil || asked.Properties == nil {
		fail(w, http.StatusBadRequest, "InvalidRequestContent", "The request content was invalid.")
		return
	}
	endpoint := endpointOf(asked.Properties)
	if u, err := url.Parse(endpoint); err != nil || u.Scheme != "https" {
		fail(w, http.StatusBadRequest, "InvalidRequest", "The endpoint must be https.")
		return
	}
	op := &operation{left: f.Polls}
	if err := f.handshake(endpoint); err != nil {
		op.failure = "Webhook validation handshake failed for " + endpoint + ": " + err.Error()
	}
	at := strings.ToLower(r.URL.Path)
	f.mu.Lock()
	asked.Properties["provisioningState"] = "Creating"
	f.subscriptions[at] = asked.Properties
	id := "op" + strconv.Itoa(len(f.operations)+1)
	f.operations[id] = op
	f.settle(op)
	f.mu.Unlock()
	w.Header().Set("Azure-AsyncOperation", f.URL+strings.Join(strings.Split(r.URL.Path, "/")[:3], "/")+
		"/providers/Microsoft.EventGrid/locations/westeurope/operationsStatus/"+id+"?api-version=2022-06-15")
	write(w, http.StatusCreated, document(r.URL.Path, maps.Clone(asked.Properties)))
}

// settle changes the state of subscriptions from Creating to Succeeded, or to Failed if op has failed. It does nothing
// while op is in progress. The caller holds mu.
func (f *Fake) settle(op *operation) {
	if op.left > 0 {
		return
	}
	for _, properties := range f.subscriptions {
		if properties["provisioningState"] == "Creating" {
			properties["provisioningState"] = "Succeeded"
			if op.failure != "" {
				properties["provisioningState"] = "Failed"
			}
		}
	}
}

func (f *Fake) operation(w http.ResponseWriter, id string) {
	f.mu.Lock()
	op := f.operations[id]
	var left int
	if op != nil {
		left = op.left
		op.left = max(op.left-1, 0)
		f.settle(op)
	}
	f.mu.Unlock()
	switch {
	case op == nil:
		fail(w, http.StatusNotFound, "NotFound", "There is no such operation.")
	case left > 0:
		write(w, http.StatusOK, map[string]any{"status": "InProgress"})
	case op.failure != "":
		write(w, http.StatusOK, map[string]any{"status": "Failed",
			"error": map[string]any{"code": "Endpoint validation", "message": op.failure}})
	default:
		write(w, http.StatusOK, map[string]any{"status": "Succeeded"})
	}
}
