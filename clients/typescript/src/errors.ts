/** What a client of a training server throws. */

export class ServerConnectionError extends Error {
  override name = "ServerConnectionError";
}

/** Tasks were refused; the message names the line. */
export class DataUploadError extends Error {
  override name = "DataUploadError";
}

/** An option was refused. */
export class InvalidConfigError extends Error {
  override name = "InvalidConfigError";
}

/** A job failed or was stopped, or there is no such job, data or checkpoint. */
export class TrainingError extends Error {
  override name = "TrainingError";
}
