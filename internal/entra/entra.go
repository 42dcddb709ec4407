// Package entra creates Microsoft Entra ID credentials from the settings that components of Azure services share.
//
// It owns the rules for choosing a kind of credential, and converts failures to messages for the operator. It has
// goroutines only while it fetches tokens. Credential.Close ends them.
package entra

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/userfile"
)

// Settings are the identity of a client and how it authenticates.
type Settings struct {
	Environment         string // name of the Azure environment, see Cloud; empty = public
	AuthorityHost       string // address of the identity service; empty = the environment's
	Tenant              string
	Client              string // application id, or the client id of a managed identity
	ClientSecret        string
	Certificate         string // PEM or PFX, as text
	CertificateFile     string
	CertificatePassword string
	Transport           http.RoundTripper // sends the requests and limits the size of answers
	Pause               time.Duration     // before the first retry of a request; later pauses are longer; 0 = 200 ms
}

// Cloud returns the configuration of an Azure environment: public (also AzurePublicCloud, the default), china
// (AzureChinaCloud) or usgovernment (AzureUSGovernmentCloud). Case does not matter. For other names it returns
// fault.Invalid.
func Cloud(environment string) (cloud.Configuration, error) {
	switch strings.ToLower(environment) {
	case "", "public", "azurepubliccloud", "azurecloud":
		return cloud.AzurePublic, nil
	case "china", "azurechinacloud", "azurechina":
		return cloud.AzureChina, nil
	case "usgovernment", "azureusgovernmentcloud", "azureusgovernment":
		return cloud.AzureGovernment, nil
	}
	return cloud.Configuration{}, &fault.Error{Code: fault.Invalid, Op: "entra.Cloud",
		Msg:  "the Azure environment is unknown",
		Hint: "use AzurePublicCloud, AzureChinaCloud or AzureUSGovernmentCloud"}
}

// Options returns the options for every Azure client with these settings. The client retries a failed request at most
// twice. It uses s.Transport, and sends no telemetry except the name of the program. Options returns fault.Invalid if
// the environment is unknown.
func (s Settings) Options() (policy.ClientOptions, error) {
	c, err := Cloud(s.Environment)
	if err != nil {
		return policy.ClientOptions{}, err
	}
	if s.AuthorityHost != "" {
		c.ActiveDirectoryAuthorityHost = s.AuthorityHost
	}
	pause := s.Pause
	if pause == 0 {
		pause = 200 * time.Millisecond
	}
	return policy.ClientOptions{
		Cloud:     c,
		Retry:     policy.RetryOptions{MaxRetries: 2, RetryDelay: pause, MaxRetryDelay: 2 * time.Second},
		Telemetry: policy.TelemetryOptions{ApplicationID: "quorate"},
		Transport: sender{s.Transport},
	}, nil
}

// sender sends requests without following redirects, because the requests carry credentials.
type sender struct{ http.RoundTripper }

// Do implements policy.Transporter.
func (s sender) Do(r *http.Request) (*http.Response, error) { return s.RoundTrip(r) }

// Credential returns a credential for these settings, and sends no requests. If a client secret or a certificate is
// set, the credential is that of the Entra application s.Client. Otherwise the credential tries the workload identity,
// and then the managed identity of the machine. Credential returns fault.Invalid if the settings contradict each other.
// The caller must close the credential.
func (s Settings) Credential() (*Credential, error) {
	source, err := s.source()
	if err != nil {
		return nil, err
	}
	return newCredential(source), nil
}

func (s Settings) source() (azcore.TokenCredential, error) {
	options, err := s.Options()
	if err != nil {
		return nil, err
	}
	certificate, err := s.certificate()
	if err != nil {
		return nil, err
	}
	given := s.ClientSecret != "" || certificate != nil
	switch {
	case s.ClientSecret != "" && certificate != nil:
		return nil, invalid("both a client secret and a certificate are set", "give one of them")
	case given && (s.Tenant == "" || s.Client == ""):
		return nil, invalid("a client secret or certificate needs azureTenantId and azureClientId", "")
	case s.ClientSecret != "":
		return s.bySecret(options)
	case certificate != nil:
		return s.byCertificate(options, certificate)
	}
	return s.ofTheMachine(options)
}

func (s Settings) bySecret(options policy.ClientOptions) (azcore.TokenCredential, error) {
	c, err := azidentity.NewClientSecretCredential(s.Tenant, s.Client, s.ClientSecret,
		&azidentity.ClientSecretCredentialOptions{
			ClientOptions: options, DisableInstanceDiscovery: s.AuthorityHost != "",
		})
	if err != nil {
		return nil, invalid("azureTenantId, azureClientId and the client secret are not a valid credential",
			"check that the tenant is an id or a domain")
	}
	return c, nil
}

func (s Settings) byCertificate(options policy.ClientOptions, certificate []byte) (azcore.TokenCredential, error) {
	chain, key, err := azidentity.ParseCertificates(certificate, []byte(s.CertificatePassword))
	if err != nil {
		return nil, invalid("the certificate cannot be read",
			"give a certificate with its private key as PEM or PFX, and azureCertificatePassword if it has one")
	}
	c, err := azidentity.NewClientCertificateCredential(s.Tenant, s.Client, chain, key,
		&azidentity.ClientCertificateCredentialOptions{
			ClientOptions: options, DisableInstanceDiscovery: s.AuthorityHost != "", SendCertificateChain: true,
		})
	if err != nil {
		return nil, invalid("azureTenantId, azureClientId and the certificate are not a valid credential", "")
	}
	return c, nil
}

func (s Settings) certificate() ([]byte, error) {
	switch {
	case s.Certificate != "":
		return []byte(s.Certificate), nil
	case s.CertificateFile == "":
		return nil, nil
	}
	data, err := userfile.Read(s.CertificateFile)
	if err != nil {
		return nil, &fault.Error{Code: fault.Invalid, Op: "entra.Credential", Msg: "reading azureCertificateFile",
			Err: err}
	}
	return data, nil
}

// ofTheMachine returns a credential that needs no secret in the settings. It tries the workload identity, if an
// orchestrator provides one, and then the managed identity of the machine.
func (s Settings) ofTheMachine(options policy.ClientOptions) (azcore.TokenCredential, error) {
	var sources []azcore.TokenCredential
	workload, err := azidentity.NewWorkloadIdentityCredential(&azidentity.WorkloadIdentityCredentialOptions{
		ClientOptions: options, ClientID: s.Client, TenantID: s.Tenant, DisableInstanceDiscovery: s.AuthorityHost != "",
	})
	// An error means that the environment provides no workload identity.
	if err == nil {
		sources = append(sources, workload)
	}
	managed := &azidentity.ManagedIdentityCredentialOptions{ClientOptions: options}
	if s.Client != "" {
		managed.ID = azidentity.ClientID(s.Client)
	}
	machine, err := azidentity.NewManagedIdentityCredential(managed)
	if err != nil {
		return nil, invalid("the managed identity cannot be used", "")
	}
	chain, err := azidentity.NewChainedTokenCredential(append(sources, machine), nil)
	if err != nil {
		return nil, invalid("there is no credential", "")
	}
	return chain, nil
}

// Failure converts an error of Microsoft's libraries to a *fault.Error. The parameter service is the name of the called
// service. The message has only the status and the error code of the answer. It leaves out the body of the answer,
// which may quote the request. If ctx has ended, the error is fault.Timeout.
func Failure(ctx context.Context, service string, err error) *fault.Error {
	const op = "entra.Failure"
	if ctx.Err() != nil {
		return &fault.Error{Code: fault.Timeout, Op: op, Msg: service + " did not answer in time", Err: ctx.Err()}
	}
	if refused, ok := errors.AsType[*refusedToken](err); ok {
		e := *refused.meaning
		return &e
	}
	if said, ok := errors.AsType[*azcore.ResponseError](err); ok {
		e := &fault.Error{Code: classify(said.StatusCode), Op: op,
			Msg: fmt.Sprintf("%s answered %d", service, said.StatusCode)}
		if said.ErrorCode != "" {
			e.Msg += " " + said.ErrorCode
		}
		return e
	}
	if _, ok := errors.AsType[final](err); ok {
		return &fault.Error{Code: fault.Denied, Op: op, Msg: "this machine has no Azure identity",
			Hint: "give azureTenantId, azureClientId and azureClientSecret"}
	}
	return &fault.Error{Code: fault.Unavailable, Op: op, Msg: service + " cannot be reached",
		Hint: "check the address, the certificate authorities and the network"}
}

// final is an error that Microsoft's libraries do not retry. Unless it comes from the answer of a service, it means
// that this machine has no Azure identity.
type final interface {
	error
	NonRetriable()
}

func classify(status int) fault.Code {
	switch {
	case status == http.StatusNotFound:
		return fault.NotFound
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return fault.Denied
	case status == http.StatusTooManyRequests:
		return fault.Overloaded
	case status == http.StatusRequestTimeout, status == http.StatusGatewayTimeout:
		return fault.Timeout
	case status >= http.StatusInternalServerError:
		return fault.Unavailable
	}
	return fault.Invalid
}

// refusal returns the error for a token request that Entra ID refused with this response. A nil response means that
// Entra ID could not be reached.
func refusal(response *http.Response) *fault.Error {
	e := &fault.Error{Code: fault.Denied, Op: "entra.Token", Msg: "Entra ID refused a token"}
	if response == nil {
		e.Code, e.Msg, e.Hint = fault.Unavailable, "Entra ID cannot be reached", "check azureEnvironment, "+
			"azureAuthorityHost and the network"
		return e
	}
	switch code := classify(response.StatusCode); code {
	case fault.Overloaded, fault.Unavailable, fault.Timeout:
		e.Code = code
	default:
		e.Hint = "check tenant, client and secret, and that the secret has not expired"
	}
	e.Msg += fmt.Sprintf(" (status %d", response.StatusCode)
	if codes := errorCodes(response.Body); codes != "" {
		e.Msg += ", " + codes
	}
	e.Msg += ")"
	return e
}

// errorCodes returns the error numbers in a body, such as AADSTS7000222.
func errorCodes(body io.Reader) string {
	if body == nil {
		return ""
	}
	var said struct {
		Codes []int `json:"error_codes"`
	}
	if json.NewDecoder(io.LimitReader(body, 64<<10)).Decode(&said) != nil {
		return ""
	}
	var out []string
	for _, code := range said.Codes {
		out = append(out, fmt.Sprintf("AADSTS%d", code))
	}
	return strings.Join(out, " ")
}

func invalid(msg, hint string) error {
	return &fault.Error{Code: fault.Invalid, Op: "entra.Credential", Msg: msg, Hint: hint}
}
