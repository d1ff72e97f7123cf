"""The DynamoDB adapter of the storage port."""

from threadkeep.storage.dynamodb.adapter import DynamoDBStorage

__all__ = ["DynamoDBStorage"]
