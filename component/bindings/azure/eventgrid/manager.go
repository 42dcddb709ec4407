package eventgrid

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/arm"
	armruntime "github.com/Azure/azure-sdk-for-go/sdk/azcore/arm/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/streaming"

	"github.com/quorate/quorate/internal/entra"
	"github.com/quorate/quorate/internal/fault"
)

// apiVersion is the version of the management API. The fields that this package reads are the same in newer
// versions.
const apiVersion = "2022-06-15"

// callTime bounds one call of the management API including its retries.
const callTime = 30 * time.Second

// maxReason bounds the length of the service's message in an error, in bytes.
const maxReason = 600

// managerName is the name of the service in messages.
const managerName = "the resource manager"

// manager calls the management API for one event subscription. It is immutable.
type manager struct {
	settings   *inputSettings
	credential *entra.Credential
	pipeline   runtime.Pipeline
	base       *url.URL // URL of the resource manager
	address    string   // URL of the event subscription, without a query
}

func newManager(s *inputSettings) (*manager, error) {
	options, err := s.identity.Options()
	if err != nil {
		return nil, err
	}
	credential, err := s.identity.Credential()
	if err != nil {
		return nil, err
	}
	service := options.Cloud.Services[cloud.ResourceManager]
	if s.manager != "" {
		service = cloud.ServiceConfiguration{Endpoint: s.manager, Audience: s.manager}
	}
	service.Audience = strings.TrimRight(cmp.Or(s.managerAudience, service.Audience), "/")
	options.Cloud.Services = maps.Clone(options.Cloud.Services)
	options.Cloud.Services[cloud.ResourceManager] = service
	pipeline, err := armruntime.NewPipeline("quorate", "v1", credential, runtime.PipelineOptions{}, &arm.ClientOptions{
		ClientOptions: options, DisableRPRegistration: true, // registration would need more permissions
	})
	if err != nil {
		return nil, &fault.Error{Code: fault.Invalid, Op: "eventgrid.Open",
			Msg: "the settings of the resource manager are incomplete", Err: err}
	}
	base, err := url.Parse(service.Endpoint)
	if err != nil {
		return nil, wrong(metadataManager, err)
	}
	return &manager{settings: s, credential: credential, pipeline: pipeline, base: base,
		address: strings.TrimRight(service.Endpoint, "/") + s.scope +
			"/providers/Microsoft.EventGrid/eventSubscriptions/" + s.name}, nil
}

// answer is the answer of the service.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// call sends a request to the management API and returns the complete response. The caller must check the status,
// because an unsuccessful status is not an error.
func (m *manager) call(ctx context.Context, method, address string, body []byte) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	request, err := runtime.NewRequest(ctx, method, address)
	if err != nil {
		return nil, &fault.Error{Code: fault.Invalid, Op: "eventgrid.call", Msg: "the address of " + managerName +
			" is not valid"}
	}
	request.Raw().Header.Set("Accept", "application/json")
	if body != nil {
		if err := request.SetBody(streaming.NopCloser(bytes.NewReader(body)), "application/json"); err != nil {
			return nil, fault.Wrap(err, "eventgrid.call", "the request")
		}
	}
	response, err := m.pipeline.Do(request)
	if err != nil {
		return nil, entra.Failure(ctx, managerName, err)
	}
	defer response.Body.Close() //nolint:errcheck // what matters has been read
	said, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, entra.Failure(ctx, managerName, err)
	}
	return &answer{status: response.StatusCode, header: response.Header, body: said}, nil
}

func (m *manager) actionURL(action string) string {
	return m.address + action + "?api-version=" + apiVersion
}

// get reads the event subscription. It returns the subscription in parsed form and as the original JSON document. Both
// results are nil if the subscription does not exist.
func (m *manager) get(ctx context.Context) (*subscription, []byte, error) {
	a, err := m.call(ctx, http.MethodGet, m.actionURL(""), nil)
	switch {
	case err != nil:
		return nil, nil, err
	case a.status == http.StatusNotFound:
		return nil, nil, nil
	case a.status != http.StatusOK:
		return nil, nil, m.refused("reading the event subscription", a)
	}
	var s subscription
	if json.Unmarshal(a.body, &s) != nil {
		return nil, nil, unexpected()
	}
	return &s, a.body, nil
}

// fullAddress returns the endpoint URL of the event subscription, including the query. It returns "" if the node lacks
// the permission to read the query. In that case, the caller must compare URLs without their queries.
func (m *manager) fullAddress(ctx context.Context) (string, error) {
	a, err := m.call(ctx, http.MethodPost, m.actionURL("/getFullUrl"), nil)
	switch {
	case err != nil:
		return "", err
	case a.status == http.StatusForbidden:
		return "", nil
	case a.status != http.StatusOK:
		return "", m.refused("reading the endpoint of the event subscription", a)
	}
	var said struct {
		URL string `json:"endpointUrl"`
	}
	if json.Unmarshal(a.body, &said) != nil {
		return "", unexpected()
	}
	return said.URL, nil
}

// put creates or changes the event subscription. It returns the URL at which the progress of this operation can be
// polled, or "" if the service returned no URL or a URL on another host.
func (m *manager) put(ctx context.Context, document []byte) (operation string, err error) {
	a, err := m.call(ctx, http.MethodPut, m.actionURL(""), document)
	if err != nil {
		return "", err
	}
	if a.status != http.StatusOK && a.status != http.StatusCreated && a.status != http.StatusAccepted {
		return "", m.refused("creating the event subscription "+m.settings.name, a)
	}
	if operation = a.header.Get("Azure-AsyncOperation"); m.own(operation) {
		return operation, nil
	}
	return "", nil
}

// own reports whether address is a URL of Azure Resource Manager. The manager must not send requests to any other host,
// because each request carries an access token.
func (m *manager) own(address string) bool {
	u, err := url.Parse(address)
	return err == nil && u.Scheme == "https" && u.User == nil && hostPort(u) == hostPort(m.base)
}

func hostPort(u *url.URL) string {
	return strings.ToLower(u.Hostname()) + ":" + cmp.Or(u.Port(), "443")
}

// progress reports whether an operation has succeeded. It returns false while the operation is running, and an error
// if the operation has failed.
func (m *manager) progress(ctx context.Context, operation string) (done bool, err error) {
	a, err := m.call(ctx, http.MethodGet, operation, nil)
	if err != nil {
		return false, err
	}
	if a.status == http.StatusAccepted {
		return false, nil
	}
	var said struct {
		Status string `json:"status"`
	}
	if a.status != http.StatusOK || json.Unmarshal(a.body, &said) != nil {
		return false, m.refused("creating the event subscription "+m.settings.name, a)
	}
	switch strings.ToLower(said.Status) {
	case "succeeded":
		return true, nil
	case "failed", "canceled":
		return false, m.problem("the event subscription "+m.settings.name+" was not created", fault.Unavailable, a)
	}
	return false, nil
}

// refused returns the error for an unsuccessful answer, with the service's reason.
func (m *manager) refused(doing string, a *answer) error {
	code := entra.Failure(context.Background(), managerName, &azcore.ResponseError{StatusCode: a.status}).Code
	return m.problem(fmt.Sprintf("%s: %s answered %d", doing, managerName, a.status), code, a)
}

// problem makes an error from the reason in an answer.
func (m *manager) problem(msg string, code fault.Code, a *answer) error {
	var said struct {
		Error struct{ Code, Message string }
	}
	_ = json.Unmarshal(a.body, &said) // without a reason, the error has none
	e := &fault.Error{Code: code, Op: "eventgrid.Start", Msg: msg}
	if reason := m.clean(said.Error.Code + " " + said.Error.Message); reason != "" {
		e.Msg += ": " + reason
	}
	e.Hint = m.hint(a.status, said.Error.Code, said.Error.Message)
	return e
}

// hint returns how to fix the cause of a refusal, or "" if the cause is unknown.
func (m *manager) hint(status int, code, message string) string {
	says := func(word string) bool {
		return strings.Contains(strings.ToLower(code+" "+message), strings.ToLower(word))
	}
	switch {
	case says("MissingSubscriptionRegistration"):
		return "register the resource provider Microsoft.EventGrid in the subscription"
	case says("validat") || says("handshake"):
		return "check that " + shown(m.settings.endpoint) +
			" can be reached from outside, has a certificate of a public authority, and leads OPTIONS and POST to " +
			metadataPort + fmt.Sprintf(" %d", m.settings.port)
	case status == http.StatusForbidden:
		return "give the application " + m.settings.client +
			" the role EventGrid EventSubscription Contributor at the scope"
	case status == http.StatusUnauthorized:
		return "check " + metadataTenant + ", " + metadataClient + " and the client secret"
	case status == http.StatusNotFound:
		return "check " + metadataScope + ": the resource must exist"
	}
	return ""
}

// clean returns a reason as one bounded line without possible secrets.
func (m *manager) clean(reason string) string {
	reason = strings.Join(strings.Fields(reason), " ")
	for _, secret := range []string{m.settings.identity.ClientSecret, m.settings.endpoint.RawQuery} {
		if secret != "" {
			reason = strings.ReplaceAll(reason, secret, "***")
		}
	}
	for _, values := range m.settings.endpoint.Query() {
		for _, value := range values {
			if value != "" {
				reason = strings.ReplaceAll(reason, value, "***")
			}
		}
	}
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "") + "..."
	}
	return reason
}

// shown returns an address without its query, which may be a secret.
func shown(u *url.URL) string { return u.Scheme + "://" + u.Host + u.EscapedPath() }
