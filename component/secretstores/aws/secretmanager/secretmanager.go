// Package secretmanager implements the secret store secretstores.aws.secretmanager. It reads secrets from AWS Secrets
// Manager with Amazon's client library. The package owns the requests and the conversion of failures to fault codes.
//
// A bulk read uses several goroutines, which end before it returns. The client library starts goroutines for its
// connections. Close closes the idle connections and so ends their goroutines.
package secretmanager

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/quorate/quorate/component/secretstores"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/rest"
)

// Type is the component type.
const Type = "secretstores.aws.secretmanager"

// Options configure a store: region and identity.
type Options struct {
	Region       string // empty = from the environment or the shared files
	AccessKey    string // empty = credentials of the environment, the shared files, the pod or the machine
	SecretKey    string
	SessionToken string
	Endpoint     string         // empty = the endpoint of the region
	MultiValued  bool           // the fields of a secret that is a JSON object are its keys
	Roots        *x509.CertPool // authorities of the service; nil = the authorities of the system and of AWS_CA_BUNDLE
}

// Store reads the secrets of one region. It is safe for concurrent use.
type Store struct {
	options   Options
	client    *secretsmanager.Client
	transport *http.Transport
	gate      secretstores.Gate
}

// Open checks the options and returns a store. It reads the AWS settings of this machine from the environment and from
// the files in ~/.aws. It does not call AWS, so it also succeeds if AWS cannot be reached.
func Open(ctx context.Context, o Options) (*Store, error) {
	const op = "secretmanager.Open"
	if (o.AccessKey == "") != (o.SecretKey == "") {
		return nil, &fault.Error{Code: fault.Invalid, Op: op, Msg: "accessKey and secretKey belong together",
			Hint: "give both or neither"}
	}
	// The library uses this client and these options also to get credentials.
	client := awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) {
		t.MaxResponseHeaderBytes = rest.MaxHeader
	})
	load := []func(*config.LoadOptions) error{config.WithHTTPClient(client), config.WithRetryer(impatient),
		config.WithAPIOptions([]func(*middleware.Stack) error{limitBodies})}
	if o.Region != "" {
		load = append(load, config.WithRegion(o.Region))
	}
	if o.AccessKey != "" {
		load = append(load, config.WithCredentialsProvider(credentials.NewStaticCredentialsProvider(o.AccessKey,
			o.SecretKey, o.SessionToken)))
	}
	found, err := config.LoadDefaultConfig(ctx, load...)
	if err != nil {
		return nil, &fault.Error{Code: fault.Invalid, Op: op, Msg: "the AWS settings of this machine cannot be read",
			Hint: "check the shared files in ~/.aws, AWS_PROFILE and AWS_CA_BUNDLE"}
	}
	if found.Region == "" {
		return nil, &fault.Error{Code: fault.Invalid, Op: op, Msg: "no AWS region is known", Hint: "set region"}
	}
	transport := rest.Transport(rest.TLS(o.Roots))
	if made, ok := found.HTTPClient.(*awshttp.BuildableClient); ok && o.Roots == nil {
		// This transport supports AWS_CA_BUNDLE.
		transport = made.GetTransport()
	}
	found.HTTPClient = &http.Client{Transport: transport, CheckRedirect: stay}
	return &Store{options: o, transport: transport, client: secretsmanager.NewFromConfig(found,
		func(c *secretsmanager.Options) {
			if o.Endpoint != "" {
				c.BaseEndpoint = &o.Endpoint
			}
		})}, nil
}

// limitBodies makes AWS clients limit the size of each answer before they read the answer.
func limitBodies(stack *middleware.Stack) error {
	limit := func(ctx context.Context, in middleware.DeserializeInput, handler middleware.DeserializeHandler) (
		middleware.DeserializeOutput, middleware.Metadata, error) {
		out, metadata, err := handler.HandleDeserialize(ctx, in)
		if answer, ok := out.RawResponse.(*smithyhttp.Response); ok && answer != nil && answer.Response != nil {
			answer.Body = rest.LimitBody(answer.Body)
		}
		return out, metadata, err
	}
	return stack.Deserialize.Add(middleware.DeserializeMiddlewareFunc("LimitBodies", limit), middleware.After)
}

// impatient returns a retryer that makes at most three attempts with short pauses. The pauses are short because the
// application waits for the answer.
func impatient() aws.Retryer {
	return retry.NewStandard(func(o *retry.StandardOptions) {
		o.MaxAttempts = 3
		o.Backoff = retry.BackoffDelayerFunc(func(attempt int, _ error) (time.Duration,
			error) {
			return rest.Backoff(attempt), nil
		})
	})
}

// stay is the CheckRedirect function of the HTTP client. It follows no redirects, because a signed request must not be
// sent to another address. Instead, the client returns the redirect response.
func stay(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Get implements secretstores.Store. The metadata version_id and version_stage select a version of the secret.
// Either or both may be set.
func (s *Store) Get(ctx context.Context, name string, metadata map[string]string) (map[string]string, error) {
	if err := s.gate.Enter(ctx); err != nil {
		return nil, err
	}
	return s.get(ctx, name, metadata[secretstores.MetadataVersionID], metadata[secretstores.MetadataVersionStage])
}

func (s *Store) get(ctx context.Context, name, version, stage string) (map[string]string, error) {
	if !isName(name) {
		return nil, secretstores.Absent(name,
			"this cannot be the name of an AWS secret; an ARN is not accepted, because scopes compare names")
	}
	in := &secretsmanager.GetSecretValueInput{SecretId: &name}
	if version != "" {
		in.VersionId = &version
	}
	if stage != "" {
		in.VersionStage = &stage
	}
	out, err := s.client.GetSecretValue(ctx, in)
	if err != nil {
		return nil, failure(ctx, name, err)
	}
	// A partial ARN, or a name that ends like the suffix of one, could find another secret than the one that
	// the scopes allowed.
	if aws.ToString(out.Name) != name {
		return nil, secretstores.Absent(name, "the service found another secret under this name")
	}
	text := aws.ToString(out.SecretString)
	if out.SecretString == nil {
		text = base64.StdEncoding.EncodeToString(out.SecretBinary)
	}
	if s.options.MultiValued {
		if fields, ok := fieldsOf(text); ok {
			return fields, nil
		}
	}
	return map[string]string{name: text}, nil
}

// fieldsOf returns the fields of a secret that is a JSON object. A field that is not a string keeps its JSON text, such
// as "42" or "true". The second result is false if the secret is not a JSON object.
func fieldsOf(text string) (map[string]string, bool) {
	var fields map[string]json.RawMessage
	if json.Unmarshal([]byte(text), &fields) != nil || fields == nil {
		return nil, false
	}
	out := make(map[string]string, len(fields))
	for key, value := range fields {
		var plain string
		if value[0] != '"' || json.Unmarshal(value, &plain) != nil {
			plain = string(value)
		}
		out[key] = plain
	}
	return out, true
}

// Bulk implements secretstores.Store. It returns the current version of every secret.
func (s *Store) Bulk(ctx context.Context, _ map[string]string) (map[string]map[string]string, error) {
	if err := s.gate.Enter(ctx); err != nil {
		return nil, err
	}
	var names []string
	pages := secretsmanager.NewListSecretsPaginator(s.client,
		&secretsmanager.ListSecretsInput{MaxResults: aws.Int32(100)})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, fault.Wrap(failure(ctx, "", err), "secretmanager.Bulk", "listing the secrets")
		}
		for i := range page.SecretList {
			names = append(names, aws.ToString(page.SecretList[i].Name))
		}
		if err := secretstores.Fits(len(names)); err != nil {
			return nil, err
		}
	}
	return secretstores.Gather(ctx, names, func(ctx context.Context, name string) (map[string]string, error) {
		return s.get(ctx, name, "", "")
	})
}

// Features implements secretstores.Featurer.
func (s *Store) Features() []secretstores.Feature {
	if !s.options.MultiValued {
		return nil
	}
	return []secretstores.Feature{secretstores.FeatureMultipleKeyValues}
}

// Close implements secretstores.Store.
func (s *Store) Close() error {
	if s.gate.Close() {
		s.transport.CloseIdleConnections()
	}
	return nil
}

// failure converts an error of the client library to a fault. The fault contains only the error code of AWS, because
// the messages of AWS can quote the signed request.
func failure(ctx context.Context, name string, err error) error {
	const op = "secretmanager.Get"
	if ctx.Err() != nil {
		return &fault.Error{Code: fault.Timeout, Op: op, Key: name, Msg: "AWS Secrets Manager did not answer in time",
			Err: ctx.Err()}
	}
	if said, ok := errors.AsType[smithy.APIError](err); ok {
		return refusal(name, said.ErrorCode(), err)
	}
	if _, ok := errors.AsType[*smithyhttp.RequestSendError](err); ok {
		return &fault.Error{Code: fault.Unavailable, Op: op, Key: name, Msg: "AWS Secrets Manager cannot be reached",
			Hint: "check region, endpoint and the network"}
	}
	if said, ok := errors.AsType[*smithyhttp.ResponseError](err); ok {
		return &fault.Error{Code: fault.Unavailable, Op: op, Key: name, Msg: "AWS Secrets Manager answered " +
			http.StatusText(said.HTTPStatusCode())}
	}
	return &fault.Error{Code: fault.Denied, Op: op, Key: name,
		Msg:  "no AWS credentials were found, or they could not be renewed",
		Hint: "give accessKey and secretKey, or let the node run with a role"}
}

func refusal(name, code string, err error) error {
	e := &fault.Error{Code: fault.Invalid, Op: "secretmanager.Get", Key: name, Msg: "AWS Secrets Manager answered " +
		code}
	switch code {
	case "ResourceNotFoundException":
		return secretstores.Absent(name, "the region has no such secret, or not this version of it")
	case "InvalidRequestException":
		return secretstores.Absent(name, "the secret is marked for deletion")
	case "AccessDeniedException", "AccessDenied", "UnrecognizedClientException", "InvalidClientTokenId",
		"InvalidSignatureException", "SignatureDoesNotMatch",
		"IncompleteSignature", "IncompleteSignatureException", "MissingAuthenticationToken",
		"MissingAuthenticationTokenException", "OptInRequired", "NotAuthorized":
		e.Code, e.Hint = fault.Denied, "check the credentials and that their policy allows "+
			"secretsmanager:GetSecretValue (and ListSecrets, for a bulk read)"
	case "ExpiredTokenException", "ExpiredToken", "RequestExpired", "InvalidIdentityToken":
		e.Code, e.Hint = fault.Denied, "the credentials have expired: renew them, and check this machine's clock"
	case "DecryptionFailure":
		e.Code, e.Hint = fault.Denied, "let the credentials use the secret's KMS key"
	case "ThrottlingException", "Throttling", "TooManyRequestsException", "RequestLimitExceeded",
		"LimitExceededException", "RequestThrottled", "RequestThrottledException", "SlowDown":
		e.Code, e.Hint = fault.Overloaded, "ask less often"
	case "RequestTimeout", "RequestTimeoutException":
		e.Code = fault.Timeout
	case "InternalServiceError", "InternalFailure", "InternalServerError", "ServiceUnavailable",
		"ServiceUnavailableException":
		e.Code = fault.Unavailable
	default:
		if said, ok := errors.AsType[*smithyhttp.ResponseError](err); ok &&
			said.HTTPStatusCode() >= http.StatusInternalServerError {
			e.Code = fault.Unavailable
		}
	}
	return e
}

// isName reports whether name is a valid name of an AWS secret. An ARN is not valid.
func isName(name string) bool {
	if name == "" || len(name) > 512 || strings.HasPrefix(strings.ToLower(name), "arn:") {
		return false
	}
	for _, c := range []byte(name) {
		ok := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
			strings.IndexByte("/_+=.@-", c) >= 0
		if !ok {
			return false
		}
	}
	return true
}
